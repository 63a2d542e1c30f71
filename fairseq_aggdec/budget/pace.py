"""How far the host runs ahead of a device that decodes alone."""

from dataclasses import dataclass

# Weight of what was seen before, per new observation.
KEEP = 0.9
# Seconds from the end of an iteration to the host's knowing of it, and from a launch to its beginning.
LATENCY = 2e-5


@dataclass
class Pace:
    """Whether an iteration is launched before the host knows what came of the one before.

    Launched ahead, the device does not wait while the host reads an outcome and launches the next iteration. But where
    that outcome ends the batch, one iteration was in vain, and the batch's tokens are read behind it. So it is done
    where the waits of a batch together would take longer than an iteration: for many short iterations, not for a few
    long ones.

    Attributes:
        iterations: of a batch.
        host: seconds that the host takes to launch one.
        device: seconds that the device takes for one.
    """

    iterations: float | None = None
    host: float | None = None
    device: float | None = None

    @property
    def ahead(self) -> int:
        """How many iterations may be under way whose outcome is not known when another is launched."""
        if self.iterations is None or self.host is None or self.device is None:
            return 1
        return int((self.iterations - 1) * (self.host + LATENCY) > self.device)

    def launched(self, seconds: float) -> None:
        """The host took so long from one launch, or the outcome that it read before, to the next."""
        self.host = _mean(self.host, seconds)

    def passed(self, seconds: float) -> None:
        """The device took so long for an iteration."""
        self.device = _mean(self.device, seconds)

    def ended(self, iterations: int) -> None:
        """A batch has had so many iterations."""
        self.iterations = _mean(self.iterations, iterations)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else KEEP * before + (1 - KEEP) * now
