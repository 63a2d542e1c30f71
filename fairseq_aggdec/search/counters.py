"""Counters of decoding: sentences, tokens, iterations, drafted and accepted tokens, seconds by part."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

PARTS = ("encoder", "draft", "verify", "other")


@dataclass
class Counters:
    """Sums over everything that was decoded.

    Attributes:
        sentences: finished sentences.
        iterations: draft-and-verify rounds, counted once per sentence and round.
        calls: decoder calls (one round of a batch is one call).
        in_vain: iterations on a GPU after the end of a batch that the host did not know yet; at most one a batch. They
            are not in ``calls``.
        drafted, accepted: draft tokens proposed, and those that were accepted.
        undrafted: sentences of batches in which the drafter drafted nothing, because drafts would not have paid.
        nodes, nodes_used: beam search: prefixes that were evaluated, and those that the search looked at.
        emitted: histogram, tokens gained in a round -> how many rounds; ``</s>`` counts as a token. In beam search
            the tokens by which all hypotheses of a sentence grew.
        accepted_lengths: histogram, drafted tokens accepted in a round -> how many rounds.
        seconds: by part.
        said: lines that the log has already.
        read: the clock, in seconds: that of the wall unless another is given.
        wait: called at the end of a part. What a GPU was given in a part is done in that part's time where this waits
            for it (``torch.cuda.synchronize``), which slows decoding down; otherwise it is in the time of the part that
            needs a result.
    """

    sentences: int = 0
    iterations: int = 0
    calls: int = 0
    drafted: int = 0
    accepted: int = 0
    nodes: int = 0
    nodes_used: int = 0
    undrafted: int = 0
    in_vain: int = 0
    emitted: Counter[int] = field(default_factory=Counter)
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    said: set[str] = field(default_factory=set, compare=False, repr=False)
    read: Callable[[], float] = time.perf_counter
    wait: Callable[[], object] | None = None

    def say(self, logger: logging.Logger, line: str, level: int = logging.INFO) -> None:
        """Logs a line, once for all that is counted here."""
        if line not in self.said:
            self.said.add(line)
            logger.log(level, "%s", line)

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Adds the time of a block to ``seconds[part]``."""
        start = self.read()
        try:
            yield
        finally:
            self.ended(part, start)

    def ended(self, part: str, start: float) -> float:
        """Adds the time since ``start`` to ``seconds[part]``; returns the time now, at which the next part starts."""
        if self.wait is not None:
            self.wait()
        now = self.read()
        self.seconds[part] += now - start
        return now

    def add_all(
        self, emitted: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]
    ) -> None:
        """Counts iterations of sentences, by the tokens of each, but for their calls."""
        self.iterations += len(emitted)
        self.drafted += sum(drafted)
        self.accepted += sum(accepted)
        self.emitted.update(emitted)
        self.accepted_lengths.update(accepted)

    def add_by_stock(self, lengths: Sequence[int]) -> None:
        """Counts a batch that stock fairseq decoded, a call for each token of its best outputs."""
        tokens = sum(lengths)
        self.sentences += len(lengths)
        self.calls += max(lengths, default=0)
        self.iterations += tokens
        self.emitted[1] += tokens
        self.accepted_lengths[0] += tokens

    @property
    def tokens(self) -> int:
        """Emitted tokens, ``</s>`` included."""
        return sum(length * rounds for length, rounds in self.emitted.items())

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens emitted per iteration (the papers' measure); 1.00 for one-by-one decoding."""
        return self.tokens / max(1, self.iterations)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens; 0 when nothing was drafted."""
        return self.accepted / max(1, self.drafted)

    def by_slot(self, most: int) -> list[float]:
        """Share of the rounds in which the first, second, ... drafted token was accepted, for at most ``most`` slots.

        Slots behind the last that was ever accepted are left out. The sum is the mean number of accepted tokens.
        """
        rounds = max(1, self.accepted_lengths.total())
        slots = range(1, min(most, max(self.accepted_lengths, default=0)) + 1)
        return [
            sum(n for length, n in self.accepted_lengths.items() if length >= slot) / rounds
            for slot in slots
        ]

    def summary(self) -> str:
        """One line for the log."""
        seconds = ", ".join(f"{part} {self.seconds[part]:.2f}" for part in PARTS)
        rate = f"acceptance rate {100 * self.acceptance_rate:.1f} %"
        accepted = rate if self.drafted else "nothing drafted"
        searched = ""
        if self.nodes:
            each = 1 / max(1, self.sentences)
            searched = (
                f"per sentence {self.iterations * each:.1f} calls, {self.nodes * each:.0f} nodes evaluated, "
                f"{self.nodes_used * each:.0f} used, "
            )
        return (
            f"{self.sentences} sentences, {self.tokens} tokens, {self.iterations} iterations, "
            f"{searched}mean accepted tokens {self.mean_accepted_tokens:.2f}, "
            f"{accepted}, "
            f"tokens per iteration {self.histogram()}, seconds: {seconds}{self._notes()}"
        )

    def _notes(self) -> str:
        notes = {
            "of the sentences were decoded without drafts, as by --decoding greedy": self.undrafted,
            "iterations more were in vain on the GPU, behind the ends of batches": self.in_vain,
        }
        return "".join(f"; {times} {what}" for what, times in notes.items() if times)

    def histogram(self, bins: tuple[int, ...] = (0, 1, 2, 3, 5, 9, 17, 33)) -> str:
        """``1: 40 %, 2: 10 %, 3-4: ...``: share of all rounds by tokens gained, empty bins left out."""
        parts = []
        for low, high in zip(bins, (*bins[1:], None), strict=True):
            last = math.inf if high is None else high
            rounds = sum(n for length, n in self.emitted.items() if low <= length < last)
            upto = "+" if high is None else f"-{high - 1}" if high > low + 1 else ""
            if rounds:
                parts.append(f"{low}{upto}: {100 * rounds / self.emitted.total():.0f} %")
        return ", ".join(parts)
