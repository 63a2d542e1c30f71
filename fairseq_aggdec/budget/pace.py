"""Tells how far the host runs ahead of a device that decodes alone."""

from fairseq_aggdec.budget.decaying_mean import DecayingMean

# Weight of earlier batches and iterations, per new one: ten count.
KEEP = 0.9
# Seconds from the end of an iteration to the host's knowing of it, and from a launch to its beginning (an H200).
LATENCY = 2e-5


class Pace:
    """Tells whether an iteration is launched before the host knows the outcome of the one before.

    Launched ahead, the device does not wait while the host reads an outcome and launches the next iteration. But where
    that outcome ends the batch, one iteration was in vain, and the batch's tokens are read behind it. So it is done
    where the waits of a batch together would take longer than an iteration: for many short iterations, not for a few
    long ones.

    Attributes:
        iterations: of a batch.
        host: seconds that the host takes to launch an iteration.
        device: seconds that the device takes for an iteration.
        waits: the host waits for the device; a CPU has finished an iteration when it was launched.
    """

    waits = True

    def __init__(self) -> None:
        self.iterations, self.host, self.device = (DecayingMean(KEEP) for _ in range(3))

    @property
    def ahead(self) -> int:
        """Tells how many iterations may be under way with unknown outcome when another is launched."""
        if not self.waits:
            return 0
        if not (self.iterations.weight and self.host.weight and self.device.weight):
            return 1
        waits = (self.iterations.mean - 1) * (self.host.mean + LATENCY)
        return int(waits > self.device.mean)

    def launched(self, seconds: float) -> None:
        """The host took ``seconds`` from one launch, or the outcome that it read before, to the next."""
        self.host.add(seconds)

    def passed(self, seconds: float) -> None:
        """The device took ``seconds`` for an iteration."""
        self.device.add(seconds)

    def ended(self, iterations: int) -> None:
        """A batch had this many iterations."""
        self.iterations.add(iterations)
