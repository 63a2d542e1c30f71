"""The cached decoder under a beam of interleaved hypotheses: windows of one step, rows copied and reordered."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.data.interleaving import Geometry, hidden_slots
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.window import Said, Window


class SlotWindow(Window):
    """The z slots of one step, for R rows in lockstep.

    Every slot sees all of them and all before (Eq. 4) unless an ablation hides some.

    Args:
        tokens: (R * z,) int64, what the slots read.
        first: the first of the slots.
        rows: R.
        geometry: of the model.
    """

    def __init__(self, tokens: Tensor, first: int, rows: int, geometry: Geometry):
        blocks = None if geometry.vanilla_mask else [0] * rows
        super().__init__(tokens, [first] * rows, [geometry.step] * rows, blocks)
        self.geometry, self.gridded = geometry, not geometry.independent

    def mask(self, dtype: torch.dtype, span: int | None = None) -> Tensor | None:
        if not self.geometry.independent:
            return super().mask(dtype, span)
        hidden = hidden_slots(self.starts[0], self.end, self.geometry, self.tokens.device)
        return additive_mask(hidden.unsqueeze(0), dtype)


class KeptBeams(NamedTuple):
    """What is kept of a step.

    Attributes:
        rows: (R,) int64 on the device: row ``rows[i]`` becomes row i. A row may come several times or not at all, and
            the number of rows may change. None: all rows stay as they are.
        within: positions that have been written, where all rows stay within their sentence, whose source needs no
            moving; 0: rows may come from anywhere.
    """

    rows: Tensor | None
    within: int = 0


@dataclass(frozen=True)
class BeamsModel:
    """A verifier under a beam of hypotheses."""

    verifier: Verifier

    def read(self, window: SlotWindow) -> Said:
        return self.verifier.read(window)

    def keep(self, kept: KeptBeams) -> None:
        if kept.rows is None:
            return
        for member in self.verifier.members:
            if kept.within:
                member.decoder.reorder(kept.rows, kept.within)
            else:
                member.decoder.gather_rows(kept.rows)
