"""The cached decoder under a beam of interleaved hypotheses: windows of one step, rows copied and reordered."""

import torch
from torch import Tensor

from fairseq_aggdec.data.interleaving import Geometry, hidden_slots
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.window import Window


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


def gather_rows(verifier: Verifier, rows: Tensor) -> None:
    """Makes row ``rows[i]`` the new row i; rows may come several times or not at all, and their number may change.

    Args:
        rows: (R,) int64 on the device.
    """
    for member in verifier.members:
        member.decoder.gather_rows(rows)


def reorder_beams(verifier: Verifier, rows: Tensor, positions: int) -> None:
    """As :func:`gather_rows` for rows that stay within their sentence, whose source needs no moving.

    Args:
        rows: (R,) int64 on the device, R as before.
        positions: how many positions have been written.
    """
    for member in verifier.members:
        member.decoder.reorder(rows, positions)
