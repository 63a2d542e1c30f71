"""The mean that everything is learned with."""


class DecayingMean:
    """A mean in which old values count less.

    Args:
        forget: the weight of everything seen, per new observation; 1: nothing fades.
        prior, weight: a mean that is believed at first, as if it had been seen ``weight`` times.
    """

    def __init__(self, forget: float, prior: float = 0.0, weight: float = 0.0):
        self.forget, self.sum, self.weight = forget, prior * weight, weight

    def add(self, total: float, count: float = 1.0) -> None:
        """Adds ``count`` observations, made at once, whose sum is ``total``."""
        self.sum = self.sum * self.forget + total
        self.weight = self.weight * self.forget + count

    def limit(self, weight: float) -> None:
        """Keeps the mean, with at most this weight."""
        share = min(1.0, weight / self.weight)
        self.sum, self.weight = share * self.sum, share * self.weight

    @property
    def mean(self) -> float:
        return self.sum / self.weight
