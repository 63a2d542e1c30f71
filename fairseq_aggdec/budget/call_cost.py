"""What calls cost: usual numbers, and lines through measured times."""

import time

from fairseq_aggdec.budget.fading import Fading

# What a call of the verifier costs beside its positions (reading the weights, host work), in positions.
# kernels: with which IAD was fastest in the compiled library, in fp32 and in 8 bits (docs/performance.md).
# cpu: `scripts/recipes/gpu/step_cost.py` on the shipped model (docs/results/iad-step_cost-cpu2.md).
# cuda: an iteration takes as long beside its products as the products of this number of positions, for a base model:
# 0.6 ms on an H200 in fp32. "cuda half" is four times that, a guess: products in half precision were not timed.
USUAL = {"kernels": 5.0, "cpu": 26.0, "cuda": 256.0, "cuda half": 1024.0}
# What the call of a model that drafts adds: three layers of width 256 in the compiled library took as long as two.
DRAFTER = 2.0
# A call of beam search, beside its prefixes, in prefixes.
# cpu: 4 to 7 in the compiled library with a decoder of width 256, twice that at base size.
# cuda: 0.9 ms on an H200, where a prefix costs the device nothing but the host some 20 us.
USUAL_OF_SEARCH = {"cpu": 6.0, "cuda": 40.0}
# Iterations of a number of rows after which measured times are believed: nearly all that a line remembers.
MEASURED = 40
# Bounds of what is learned: positions, and times what is usual. Noise can make any line of times.
LEAST, MOST = 2.0, 16.0
# Weight of earlier times, per new one: some fifty iterations count.
FORGET = 0.98
# An iteration counts as at most this many times longer than expected: the machine did something else.
OUTLIER = 2.0
# Iterations with a draft after which the time without one is measured again, at first and later: what was measured
# first may have been measured on a cold machine.
FIRST_PATIENCE, PATIENCE = 16, 256
# The variance of sizes from which on there are two of them; rounding leaves less.
LEAST_SPREAD = 1e-9


class Patience:
    """When to measure again what takes no draft.

    Attributes:
        since: iterations, or batches, with a draft since the last one without.
    """

    def __init__(self) -> None:
        self.since, self.most = 0, FIRST_PATIENCE

    def ends(self) -> bool:
        """Whether it is time; the next time later is soon enough."""
        if self.since < self.most:
            return False
        self.most = min(2 * self.most, PATIENCE)
        return True


class CostLine:
    """Seconds of an iteration without a draft, and of one with k drafted tokens as a line a + b k.

    Attributes:
        plain: seconds without a draft.
        k, kk, t, kt: of iterations with a draft: tokens, seconds t, and their products.
        seen: iterations with a draft.
        patience: with the time without a draft.
    """

    def __init__(self) -> None:
        self.plain, self.k, self.kk, self.t, self.kt = (Fading(FORGET) for _ in range(5))
        self.patience, self.seen = Patience(), 0

    def add(self, drafted: int, seconds: float) -> float:
        """Remembers an iteration; returns ``seconds``, less where the machine did something else."""
        if (self.k if drafted else self.plain).weight:
            seconds = min(seconds, OUTLIER * self.estimate(drafted))
        if drafted == 0:
            self.plain.add(seconds)
            self.patience.since = 0
            return seconds
        self.plain.fade()  # what was measured long ago gives way to what is measured next
        self.patience.since += 1
        self.seen += 1
        self.k.add(drafted)
        self.kk.add(drafted * drafted)
        self.t.add(seconds)
        self.kt.add(drafted * seconds)
        return seconds

    @property
    def slope(self) -> float | None:
        """Seconds of a drafted token, at least 0; None until drafts of two sizes were seen."""
        spread = self.kk.mean - self.k.mean**2
        if spread <= LEAST_SPREAD:
            return None
        return max(0.0, (self.kt.mean - self.k.mean * self.t.mean) / spread)

    def estimate(self, drafted: int) -> float:
        """Seconds of an iteration; one of its kind, with a draft or without, has been seen."""
        if drafted == 0:
            return self.plain.mean
        # None is quicker than no draft. Until two sizes were seen a token takes as long as an iteration.
        least = self.plain.mean if self.plain.weight else 0.0
        slope = self.slope
        return max(
            least, self.t.mean + (least if slope is None else slope) * (drafted - self.k.mean)
        )


class CallCost:
    """What iterations cost, learned apart for every power of two of rows.

    Attributes:
        unmeasured: whether the first iteration with a draft, or without, is still to come: it lays out weights and is
            no measure.
    """

    def __init__(self) -> None:
        self.lines: dict[int, CostLine] = {}
        self.unmeasured = {False, True}

    def line(self, rows: int) -> CostLine:
        return self.lines.setdefault(rows.bit_length(), CostLine())

    def observe(self, rows: int, drafted: int, seconds: float) -> float | None:
        """An iteration with ``drafted`` tokens in all has ended.

        Returns:
            ``seconds``, less where the machine did something else; None where it is no measure.
        """
        if (drafted > 0) in self.unmeasured:
            self.unmeasured.remove(drafted > 0)
            return None
        return self.line(rows).add(drafted, seconds)

    def beside(self, rows: int, by: str, drafter: bool = False) -> float:
        """Cost of an iteration beside its positions, in positions: the usual one until it was measured.

        Args:
            rows: of the iteration.
            by: what decodes: ``kernels``, else ``cpu`` or another device.
            drafter: a model drafts, whose call is part of it.
        """
        usual = USUAL.get(by, USUAL["cuda"]) + DRAFTER * drafter
        line = self.lines.get(rows.bit_length())
        slope = None if line is None or line.seen < MEASURED else line.slope
        if line is None or slope is None:
            return usual
        if slope == 0.0:  # tokens seem to be free
            return MOST * usual
        # The line is of drafted tokens: each row has one position more.
        learned = line.t.mean / slope - line.k.mean - rows
        return min(max(learned, LEAST), MOST * usual)

    def fixed(self, rows: int, by: str, drafter: bool = False) -> float:
        """Cost of an iteration beside its draft, for each row, in drafted tokens; arguments as for :meth:`beside`."""
        return 1.0 + self.beside(rows, by, drafter) / rows


class UsualCost(CallCost):
    """What iterations usually cost, whatever the clock says."""

    def observe(self, rows: int, drafted: int, seconds: float) -> float | None:
        return None


class IterationClock:
    """The time of a drafter's iterations, from the end of one to the end of the next: what follows a draft belongs to
    it (the keys of a tree's path are moved).

    Attributes:
        read: seconds; on CPU those of the thread, as other processes on a core say nothing about drafts.
        anew: an iteration begins with its draft, where the device is waited for.
        last: when the iteration before ended; None where nobody asked: the next begins with its draft.
    """

    def __init__(self) -> None:
        self.start("cpu")

    def start(self, device_type: str, anew: bool = False) -> None:
        """A batch begins: what lies before its first draft is no iteration."""
        self.read = time.thread_time if device_type == "cpu" else time.perf_counter
        self.anew = anew
        self.last: float | None = None

    def begin(self) -> None:
        """A draft is asked for."""
        if self.last is None or self.anew:
            self.last = self.read()

    def end(self) -> float | None:
        """Tokens have reached the host: seconds since the iteration before, None where nobody asked for its time."""
        before, self.last = self.last, self.read()
        return None if before is None else self.last - before
