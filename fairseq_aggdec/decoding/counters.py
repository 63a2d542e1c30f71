"""What decoding counts: sentences, tokens, iterations, drafted and accepted tokens, seconds by part."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fairseq_aggdec.decoding.draft import Verification

PARTS = ("encoder", "draft", "verify", "other")


@dataclass
class Counters:
    """Sums over everything that was decoded.

    Attributes:
        sentences: finished sentences.
        iterations: draft-and-verify rounds, counted once per sentence and round.
        calls: decoder calls (one round of a batch is one call).
        drafted, accepted: draft tokens proposed, and those that stood.
        emitted: histogram, tokens gained in a round -> how many rounds; ``</s>`` counts as a token.
        seconds: wall clock by part.
        wait: called at the end of a part. What a GPU was given in a part is done in that part's time where this waits
            for it (``torch.cuda.synchronize``), which slows decoding down; otherwise it is in the time of the part that
            needs a result.
    """

    sentences: int = 0
    iterations: int = 0
    calls: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    wait: Callable[[], object] | None = None

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Adds the time of a block to ``seconds[part]``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.wait is not None:
                self.wait()
            self.seconds[part] += time.perf_counter() - start

    def add(self, verification: Verification) -> None:
        """Counts one iteration of a batch."""
        self.calls += 1
        self.iterations += len(verification.emitted)
        self.drafted += sum(verification.drafted)
        self.accepted += sum(verification.accepted)
        self.emitted.update(map(len, verification.emitted))

    @property
    def tokens(self) -> int:
        """Emitted tokens, ``</s>`` included."""
        return sum(length * rounds for length, rounds in self.emitted.items())

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens emitted per iteration (the papers' measure); 1.00 for one-by-one decoding."""
        return self.tokens / max(1, self.iterations)

    @property
    def mean_accepted_block(self) -> float:
        """Accepted block size of Stern et al., whose steps begin behind the first call: the same without the first
        iteration of each sentence, which gains one token where there are no features to propose from yet."""
        return (self.tokens - self.sentences) / max(1, self.iterations - self.sentences)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens; 0 when nothing was drafted."""
        return self.accepted / max(1, self.drafted)

    def summary(self) -> str:
        """One line for the log."""
        seconds = ", ".join(f"{part} {self.seconds[part]:.2f}" for part in PARTS)
        return (
            f"{self.sentences} sentences, {self.tokens} tokens, {self.iterations} iterations, "
            f"mean accepted tokens {self.mean_accepted_tokens:.2f}, "
            f"acceptance rate {100 * self.acceptance_rate:.1f} %, "
            f"tokens per iteration {self.histogram()}, seconds: {seconds}"
        )

    def histogram(self, bins: tuple[int, ...] = (1, 2, 3, 5, 9, 17, 33)) -> str:
        """``1: 40 %, 2: 10 %, 3-4: ...``: share of iterations by tokens emitted, empty bins left out."""
        parts = []
        for low, high in zip(bins, (*bins[1:], None), strict=True):
            rounds = sum(
                n
                for length, n in self.emitted.items()
                if length >= low and (high is None or length < high)
            )
            if rounds:
                name = (
                    f"{low}+"
                    if high is None
                    else f"{low}"
                    if high == low + 1
                    else f"{low}-{high - 1}"
                )
                parts.append(f"{name}: {100 * rounds / max(1, self.iterations):.0f} %")
        return ", ".join(parts)
