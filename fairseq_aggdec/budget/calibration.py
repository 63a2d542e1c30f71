"""What a drafter's probability is worth: the chance that the token stands, fitted on what the verifier accepted.

A drafter is trained on what verifiers write, not on how sure it may be; and only a few candidates of each slot are
looked at, of which none may be right. So the logit of a probability is divided by a temperature and shifted, as Platt
(1999) did with the scores of support vector machines. Both numbers are learned for each slot while decoding: a token
whose predecessors stand is one observation.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.windows.transfer import to_device

# Logits are counted in bins of half a nat, up to LIMIT on either side.
LIMIT, PER_NAT = 12.0, 2
# Observations after which the fit is made anew, and those of a slot that are remembered at most.
REFRESH, MEMORY = 256, 20_000.0
# How strongly it is believed that a slot is like the one before, the first as it says; in observations.
PRIOR = 20.0
STEPS = 8


class Scale:
    """The fit of one slot.

    Attributes:
        slope: one over the temperature.
        shift: nats.
    """

    def __init__(self, slope: float = 1.0, shift: float = 0.0) -> None:
        self.slope, self.shift = slope, shift
        self.reached = [0.0] * (int(2 * LIMIT * PER_NAT) + 1)
        self.stood = list(self.reached)

    def observe(self, chance: float, stood: bool) -> None:
        """A token to which this scale gave a chance (its logarithm) stood, or did not."""
        certain = -math.expm1(min(chance, -1e-6))  # of not standing
        logit = (chance - math.log(certain) - self.shift) / self.slope
        if math.isnan(logit):  # of a model that is broken: decoding ends with its own message
            return
        place = round((min(max(logit, -LIMIT), LIMIT) + LIMIT) * PER_NAT)
        self.reached[place] += 1.0
        self.stood[place] += stood

    def fit(self, near: "Scale") -> None:
        """Newton's method on the likelihood; a prior pulls towards ``near``."""
        total = sum(self.reached)
        if total > MEMORY:
            self.reached = [count * MEMORY / total for count in self.reached]
            self.stood = [count * MEMORY / total for count in self.stood]
        reached, stood = np.array(self.reached), np.array(self.stood)
        logits = np.arange(len(reached)) / PER_NAT - LIMIT
        slope, shift = self.slope, self.shift
        for _ in range(STEPS):
            chances = 1.0 / (1.0 + np.exp(-(slope * logits + shift)))
            missing, weights = stood - reached * chances, reached * chances * (1.0 - chances)
            steep = PRIOR * (near.slope - slope) + missing @ logits
            high = PRIOR * (near.shift - shift) + missing.sum()
            curve = PRIOR + weights @ logits**2, weights @ logits, PRIOR + weights.sum()
            determinant = curve[0] * curve[2] - curve[1] ** 2
            slope += (curve[2] * steep - curve[1] * high) / determinant
            shift += (curve[0] * high - curve[1] * steep) / determinant
            # A step too far, or a drafter whose probabilities say nothing.
            slope, shift = float(np.clip(slope, 0.1, 4.0)), float(np.clip(shift, -4.0, 4.0))
        self.slope, self.shift = slope, shift


class Calibration:
    """Chances that drafted tokens stand where those before them do.

    Attributes:
        scales: of the slots that were looked at.
    """

    def __init__(self) -> None:
        self.scales: list[Scale] = []
        self.fresh = 0
        self.table: Tensor | None = None  # slopes and shifts where they were last used, (2, k)

    def chances(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities (B, k, M, M) of k slots -> logarithms of chances; the order is kept."""
        slots = log_probs.size(1)
        numbers = self.numbers(slots, log_probs.device)[:, :slots]
        slope, shift = numbers.reshape(2, -1, 1, 1).unbind(0)
        # the logit: log p - log(1 - p)
        logits = log_probs - torch.log(-torch.expm1(log_probs.clamp(max=-1e-6)))
        return F.logsigmoid(slope * logits + shift)

    def numbers(self, slots: int, device: torch.device) -> Tensor:
        """Slopes and shifts of at least ``slots`` slots: (2, k or more) fp32."""
        while len(self.scales) < slots:
            near = self.scales[-1] if self.scales else Scale()
            self.scales.append(Scale(near.slope, near.shift))
        if self.table is None or self.table.size(1) < slots or self.table.device != device:
            numbers = [[s.slope for s in self.scales], [s.shift for s in self.scales]]
            self.table = to_device(numbers, device, torch.float32)
        return self.table

    def observe(self, outcomes: Iterable[tuple[int, float, bool]]) -> None:
        """Learns from slots, logarithms of :meth:`chances` and whether the tokens stood."""
        for slot, chance, stood in outcomes:
            self.scales[slot].observe(chance, stood)
            self.fresh += 1
        if self.fresh >= REFRESH:
            self.fresh, self.table = 0, None
            near = Scale()
            for scale in self.scales:
                scale.fit(near)
                near = scale
