"""How long iterations take: the clock of a drafter, and running means by how many tokens were drafted."""

import time

import torch

# Weight of everything seen, per new observation: some fifty iterations count.
FORGET = 0.98
# An iteration counts as this many times longer than usual at most: the machine did something else.
OUTLIER = 2.0
# Iterations with a draft after which the time without one is measured again, at first and later: what was measured
# first may have been measured on a cold machine.
FIRST_PATIENCE, PATIENCE = 16, 256
# The variance of sizes from which on there are two of them.
LEAST_SPREAD = 1e-9


class Decayed:
    """A mean in which old values fade.

    Args:
        forget: the weight of everything seen, per new observation.
    """

    def __init__(self, forget: float = FORGET) -> None:
        self.sum = self.weight = 0.0
        self.forget = forget

    def fade(self, times: float = 1.0) -> None:
        left = self.forget**times
        self.sum *= left
        self.weight *= left

    def add(self, total: float, count: float = 1.0) -> None:
        """Adds ``count`` observations, made at once, their sum being ``total``."""
        self.fade()
        self.sum += total
        self.weight += count

    @property
    def mean(self) -> float:
        return self.sum / self.weight

    def mean_with(self, prior: float) -> float:
        """The mean when ``prior`` is one observation more."""
        return (self.sum + prior) / (self.weight + 1.0)


class Times:
    """Seconds of an iteration without a draft, and of one with k drafted tokens as a line a + b k.

    Attributes:
        since: iterations with a draft since the last one without.
        patience: so many of these are enough until the time without one is measured again.
    """

    def __init__(self) -> None:
        self.patience = FIRST_PATIENCE
        self.plain = Decayed()
        self.k, self.kk, self.t, self.kt = (Decayed() for _ in range(4))
        self.since = 0

    def add(self, size: int, seconds: float) -> float:
        """Remembers an iteration; returns ``seconds``, less where the machine did something else."""
        if (self.k if size else self.plain).weight:
            seconds = min(seconds, OUTLIER * self.estimate(size))
        if size == 0:
            self.add_plain(seconds, 1)
            return seconds
        self.plain.fade()  # what was measured long ago gives way to what is measured next
        self.since += 1
        for mean, value in (
            (self.k, size),
            (self.kk, size * size),
            (self.t, seconds),
            (self.kt, size * seconds),
        ):
            mean.add(value)
        return seconds

    def add_plain(self, seconds: float, count: int) -> None:
        """Remembers so many iterations without a draft, ``seconds`` in all."""
        self.plain.fade(count - 1)
        self.plain.add(seconds, count)
        self.since = 0

    def grows_stale(self) -> bool:
        """Whether the time without a draft is to be measured again; then later is soon enough the next time."""
        if self.since < self.patience:
            return False
        self.patience = min(2 * self.patience, PATIENCE)
        return True

    @property
    def spread(self) -> float:
        """The variance of the sizes with a draft."""
        return self.kk.mean - self.k.mean**2

    def estimate(self, size: int) -> float:
        """Seconds of an iteration with ``size`` drafted tokens; its kind has been seen."""
        if size == 0:
            return self.plain.mean
        least = self.plain.mean if self.plain.weight else 0.0
        slope = least  # until a second size has been seen: as if a drafted token took as long as an iteration
        if self.spread > LEAST_SPREAD:
            slope = (self.kt.mean - self.k.mean * self.t.mean) / self.spread
        # A shorter block never takes longer, and none is quicker than no draft, whatever noise makes of the line.
        return max(least, self.t.mean + max(0.0, slope) * (size - self.k.mean))


class IterationClock:
    """The time of a drafter's iterations, from the end of one to the end of the next: what follows a draft belongs to
    it (the keys of a tree's path are put in place).

    Attributes:
        read: seconds; on CPU of the thread: what other processes take of a core says nothing about drafts.
        anew: an iteration begins with its draft, where the device is waited for.
        last: when the iteration before ended; None where nobody asked: the next begins with its draft.
    """

    def __init__(self) -> None:
        self.last: float | None = None
        self.start(torch.device("cpu"))

    def start(self, device: torch.device, anew: bool = False) -> None:
        """A batch begins: what lies before its first draft is no iteration."""
        self.read = time.thread_time if device.type == "cpu" else time.perf_counter
        self.anew, self.last = anew, None

    def begin(self) -> None:
        """A draft is asked for."""
        if self.last is None or self.anew:
            self.last = self.read()

    def end(self) -> float | None:
        """Tokens have reached the host: seconds since the iteration before, None where nobody asked for its time."""
        before, self.last = self.last, self.read()
        return None if before is None else self.last - before
