"""How many tokens to draft at once: a fixed number, or learned from measured times and from what became of the drafts
before (``--block-size auto``)."""

from collections.abc import Sequence
from typing import Protocol

FORGET = 0.98  # weight of everything seen, per new observation: some fifty iterations count
PRIOR = 0.5  # what a draft token's chance is believed to be before any was seen
OUTLIER = 2.0  # an iteration counts as this many times longer than usual at most: the machine did something else
FIRST_LOOK, LAST_LOOK = 64, 1024  # iterations between looks at drafting while drafting does not pay


class BlockSize(Protocol):
    """Chooses k before an iteration and is told afterwards what it brought."""

    def choose(self, rows: int) -> int:
        """Tokens to draft for each of ``rows`` sentences; 0 for none."""

    def observe(
        self, rows: int, drafted: Sequence[int], accepted: Sequence[int], seconds: float
    ) -> None:
        """What became of the last choice: drafted and accepted tokens per row, wall clock of the iteration."""


class FixedBlockSize:
    """Always the same k."""

    def __init__(self, size: int):
        self.size = size

    def choose(self, rows: int) -> int:
        return self.size

    def observe(
        self, rows: int, drafted: Sequence[int], accepted: Sequence[int], seconds: float
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
    """Seconds of an iteration without a draft, and of one with k drafted tokens as a line a + b k."""

    def __init__(self) -> None:
        self.plain = Decayed()
        self.k, self.kk, self.t, self.kt = (Decayed() for _ in range(4))

    def add(self, size: int, seconds: float) -> None:
        if (self.k if size else self.plain).weight:
            seconds = min(seconds, OUTLIER * self.estimate(size))
        if size == 0:
            self.plain.add(seconds)
            return
        for mean, value in (
            (self.k, size),
            (self.kk, size * size),
            (self.t, seconds),
            (self.kt, size * seconds),
        ):
            mean.add(value)

    def estimate(self, size: int) -> float:
        """Seconds of an iteration with ``size`` drafted tokens; its kind has been seen."""
        if size == 0:
            return self.plain.mean
        spread = self.kk.mean - self.k.mean**2
        slope = (self.kt.mean - self.k.mean * self.t.mean) / spread if spread > 1e-9 else 0.0
        # A shorter block never takes longer, and none is quicker than no draft, whatever noise makes of the line.
        least = self.plain.mean if self.plain.weight else 0.0
        return max(least, self.t.mean + max(0.0, slope) * (size - self.k.mean))


class LearnedBlockSize:
    """The k with the most tokens per second, 0 included: then nothing is drafted and decoding is greedy.

    The chance that the i-th drafted token stands and the time of an iteration are running means, the times apart for
    every power of two of sentences. While drafting does not pay it is tried again ever more rarely, so that decoding
    stays close to the speed of ``greedy``.

    Args:
        largest: the largest k.
    """

    def __init__(self, largest: int):
        self.sizes = sorted({*range(1, min(largest, 6) + 1), *range(8, largest + 1, 2), largest})
        self.stands = [Decayed(PRIOR, 1.0) for _ in range(largest)]
        self.times: dict[int, Times] = {}
        self.chosen = 0
        # The first iteration of each kind, without and with a draft, lays out weights and is no measure.
        self.unmeasured = {False, True}
        self.idle, self.look = 0, FIRST_LOOK

    def choose(self, rows: int) -> int:
        times = self.times.setdefault(rows.bit_length(), Times())
        if times.plain.weight == 0:
            self.chosen = 0
        elif times.k.weight < 2:  # a line needs two points
            self.chosen = (
                self.sizes[-1] if times.k.weight == 0 else self.sizes[len(self.sizes) // 2]
            )
        else:
            self.chosen = self._best(times)
            self._look_again(times)
        return self.chosen

    def observe(
        self, rows: int, drafted: Sequence[int], accepted: Sequence[int], seconds: float
    ) -> None:
        # Where a sentence ends before the block does, the rest of the block brings nothing either.
        for stood in accepted:
            for index in range(min(self.chosen, stood + 1)):
                self.stands[index].add(index < stood)
        size = self.chosen if any(drafted) else 0
        if bool(size) in self.unmeasured:
            self.unmeasured.remove(bool(size))
        else:
            self.times[rows.bit_length()].add(size, seconds)

    def _best(self, times: Times) -> int:
        best, most = 0, 1.0 / times.estimate(0)
        expected, chance = 1.0, 1.0
        for size in range(1, self.sizes[-1] + 1):
            chance *= self.stands[size - 1].mean
            expected += chance
            if size in self.sizes and expected / times.estimate(size) > most:
                best, most = size, expected / times.estimate(size)
        return best

    def _look_again(self, times: Times) -> None:
        """Drafts once after a while of not drafting, and the other way round, to keep both times fresh."""
        self.idle += 1
        if self.idle < self.look:
            return
        self.idle = 0
        if self.chosen:
            self.chosen, self.look = 0, FIRST_LOOK
        else:
            self.chosen, self.look = self.sizes[0], min(2 * self.look, LAST_LOOK)
