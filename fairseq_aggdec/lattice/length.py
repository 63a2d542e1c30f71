"""Target length from source length: a straight line and a window around it.

Deng and Rush 2021, section 4: linear regression predicts the length L from S, and all lengths from L - dL to L + dL are
searched at once (dL = 3). Lengths are numbers of tokens without ``</s>``, on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairseq_aggdec.windows.transfer import sent

WINDOW = 3  # the paper's dL


@dataclass(frozen=True)
class LengthWindow:
    """Target lengths of B rows, ``</s>`` not counted.

    Attributes:
        shortest, longest: (B,) int64, both allowed; 1 <= shortest <= longest.
    """

    shortest: Tensor
    longest: Tensor

    def to(self, device: torch.device) -> LengthWindow:
        """The same on a device, which is not waited for."""
        shortest, longest = sent(torch.stack([self.shortest, self.longest]), device)
        return LengthWindow(shortest, longest)


@dataclass(frozen=True)
class LengthModel:
    """L = slope * S + intercept, rounded half up."""

    slope: float
    intercept: float

    @classmethod
    def fit(cls, source_lengths: np.ndarray, target_lengths: np.ndarray) -> LengthModel:
        """Ordinary least squares over pairs of lengths (P,), at least one.

        Where all sources are equally long the line is flat.
        """
        source, target = (x.astype(np.float64) for x in (source_lengths, target_lengths))
        centred = source - source.mean()
        spread = float(centred @ centred)
        slope = float(centred @ target) / spread if spread else 0.0
        return cls(slope, float(target.mean() - slope * source.mean()))

    @classmethod
    def from_record(cls, record: Mapping[str, float]) -> LengthModel:
        model = cls(record["slope"], record["intercept"])
        if not (math.isfinite(model.slope) and math.isfinite(model.intercept)):
            raise ValueError(f"the length model {record} is not finite")
        return model

    def predict(self, source_lengths: Tensor) -> Tensor:
        """Lengths (B,) int64, at least 1, of sources (B,)."""
        line = source_lengths.double() * self.slope + self.intercept
        return (line + 0.5).floor().long().clamp(min=1)

    def window(
        self, source_lengths: Tensor, window: int = WINDOW, longest: int | None = None
    ) -> LengthWindow:
        """The lengths from L - ``window`` to L + ``window``.

        Args:
            source_lengths: (B,).
            window: dL, 0 for the predicted length alone.
            longest: no length above this one is allowed, which is at least 1.
        """
        predicted = self.predict(source_lengths)
        return LengthWindow(
            (predicted - window).clamp(1, longest), (predicted + window).clamp(1, longest)
        )
