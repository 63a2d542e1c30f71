"""How many tokens to draft at once: a fixed number, or learned from measured times and from what became of the drafts
before (``--block-size auto``)."""

from collections.abc import Callable, Sequence
from typing import Protocol

FORGET = 0.98  # weight of everything seen, per new observation: some fifty iterations count
PRIOR = 0.5  # what a draft token's chance is believed to be before any was seen
OUTLIER = 2.0  # an iteration counts as this many times longer than usual at most: the machine did something else
ALLOWED = (
    0.03  # of the time of greedy decoding, which drafting may lose in all for a number of sentences
)
REFRESH = 64  # iterations with a draft, after which the time without one is measured again


class BlockSize(Protocol):
    """Chooses k before an iteration and is told afterwards what it brought."""

    def choose(self, rows: int) -> int:
        """Tokens to draft for each of ``rows`` sentences; 0 for none."""

    def observe(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        emitted: Sequence[int],
        seconds: float,
        once: float = 0.0,
    ) -> None:
        """What became of the last choice.

        Args:
            drafted, accepted, emitted: tokens per row.
            seconds: wall clock of the iteration.
            once: the part of it that only the first draft of a batch takes.
        """


class FixedBlockSize:
    """Always the same k."""

    def __init__(self, size: int):
        self.size = size

    def choose(self, rows: int) -> int:
        return self.size

    def observe(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        emitted: Sequence[int],
        seconds: float,
        once: float = 0.0,
    ) -> None:
        pass


class Decayed:
    """A mean in which old values fade."""

    def __init__(self, value: float = 0.0, weight: float = 0.0):
        self.sum, self.weight = value * weight, weight

    def add(self, value: float) -> None:
        self.sum = FORGET * self.sum + value
        self.weight = FORGET * self.weight + 1.0

    @property
    def mean(self) -> float:
        return self.sum / self.weight


class Times:
    """Seconds of an iteration without a draft, and of one with k drafted tokens as a line a + b k.

    Attributes:
        lost: seconds that drafting took more than decoding one by one would have for the same tokens, since it last
            was ahead.
        greedy: seconds that decoding one by one would have taken for all tokens.
    """

    def __init__(self) -> None:
        self.plain = Decayed()
        self.k, self.kk, self.t, self.kt = (Decayed() for _ in range(4))
        self.lost = self.greedy = 0.0

    def add(self, size: int, seconds: float) -> float:
        """Remembers an iteration; returns ``seconds``, less where the machine did something else."""
        if (self.k if size else self.plain).weight:
            seconds = min(seconds, OUTLIER * self.estimate(size))
        if size == 0:
            self.plain.add(seconds)
            return seconds
        for mean, value in (
            (self.k, size),
            (self.kk, size * size),
            (self.t, seconds),
            (self.kt, size * seconds),
        ):
            mean.add(value)
        return seconds

    def estimate(self, size: int) -> float:
        """Seconds of an iteration with ``size`` drafted tokens; its kind has been seen."""
        if size == 0:
            return self.plain.mean
        least = self.plain.mean if self.plain.weight else 0.0
        spread = self.kk.mean - self.k.mean**2
        slope = least  # until a second size has been seen: as if a drafted token took as long as an iteration
        if spread > 1e-9:
            slope = (self.kt.mean - self.k.mean * self.t.mean) / spread
        # A shorter block never takes longer, and none is quicker than no draft, whatever noise makes of the line.
        return max(least, self.t.mean + max(0.0, slope) * (size - self.k.mean))

    def book(self, size: int, emitted: float, seconds: float) -> None:
        """Adds an iteration to :attr:`lost` and :attr:`greedy`.

        Args:
            emitted: tokens per sentence.
        """
        if self.plain.weight:
            greedy = emitted * self.plain.mean
            self.greedy += greedy
            if size:
                self.lost = max(0.0, self.lost + seconds - greedy)

    def affords(self, cost: float) -> bool:
        """Whether drafting may lose ``cost`` seconds more."""
        return self.lost + cost <= ALLOWED * self.greedy


class LearnedBlockSize:
    """The k with the most tokens per second, 0 included: then nothing is drafted and decoding is greedy.

    The chance that the i-th drafted token stands and the time of an iteration are running means, the times apart for
    every power of two of sentences. How long a draft takes where none was seen is guessed in proportion from more
    sentences, or as if every token took an iteration. Where drafting is not believed to pay, or has lost time, it is
    tried no more than :data:`ALLOWED` affords, so that decoding stays as close to the speed of ``greedy``.

    Args:
        largest: the largest k.
    """

    def __init__(self, largest: int):
        self.sizes = sorted({*range(1, min(largest, 6) + 1), *range(8, largest + 1, 2), largest})
        self.stands = [Decayed(PRIOR, 1.0) for _ in range(largest)]
        self.times: dict[int, Times] = {}
        self.stood, self.ended = (
            Decayed(),
            Decayed(),
        )  # accepted tokens of a row, and </s> among them
        self.chosen = 0
        # The first iteration of each kind, without and with a draft, lays out weights and is no measure.
        self.unmeasured = {False, True}
        self.since = 0  # iterations since the last one without a draft

    def choose(self, rows: int) -> int:
        times = self.times.setdefault(rows.bit_length(), Times())
        self.since += 1
        if times.plain.weight == 0 or self.since > REFRESH:
            self.chosen = 0
        else:
            self.chosen = self._affordable(rows.bit_length(), times)
        if self.chosen == 0:
            self.since = 0
        return self.chosen

    def observe(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        emitted: Sequence[int],
        seconds: float,
        once: float = 0.0,
    ) -> None:
        rows = len(emitted)
        size = self.chosen if any(drafted) else 0
        # Where a sentence ends before the block does, the rest of the block brings nothing either.
        for stood, gained in zip(accepted, emitted, strict=True):
            for index in range(min(size, stood + 1)):
                self.stands[index].add(index < stood)
            if size:
                self.stood.add(stood)
                self.ended.add(gained == stood)
        times = self.times[rows.bit_length()]
        if bool(size) in self.unmeasured:
            self.unmeasured.remove(bool(size))
        else:
            usual = times.add(size, seconds - once)
            times.book(size, sum(emitted) / rows, usual + once)

    def _affordable(self, bucket: int, times: Times) -> int:
        """The best k for a number of sentences, 0 where a draft would lose more than may be lost."""
        expected = self._expected()
        sizes = self.sizes
        if times.k.weight == 1:  # a line needs two points
            sizes = [sizes[len(sizes) // 2]]
        guess = self._guess(bucket, times)
        seconds = {size: guess(size) for size in sizes}
        best = max(sizes, key=lambda size: expected[size] / seconds[size])
        loss = seconds[best] - expected[best] * times.plain.mean
        return best if times.affords(max(0.0, loss)) else 0

    def _guess(self, bucket: int, times: Times) -> Callable[[int], float]:
        """Seconds of an iteration by its number of drafted tokens."""
        # A draft for fewer sentences takes less; one for more may take more than in proportion.
        seen = [b for b, other in self.times.items() if b >= bucket and other.k.weight]
        if not seen:
            return lambda size: (1 + size) * times.plain.mean
        near = self.times[min(seen)]
        scale = 1.0 if near is times else times.plain.mean / near.plain.mean
        return lambda size: scale * near.estimate(size)

    def _expected(self) -> list[float]:
        """Tokens that a row gains by a draft of 0, 1, ... k: those that stand, and one more but behind ``</s>``."""
        ends = self.ended.mean / self.stood.mean if self.stood.weight and self.stood.mean else 0.0
        gains, chance = [1.0], 1.0
        for stands in self.stands:
            chance *= stands.mean
            gains.append(gains[-1] + chance * (1.0 - ends))
        return gains
