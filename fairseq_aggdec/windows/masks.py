"""Additive attention masks, laid out so that fused kernels read them without a copy."""

import torch
from torch import Tensor

# A fused kernel reads masks whose rows begin at multiples of 8 numbers. It copies any other mask, in every layer.
ALIGNMENT = 8


def aligned(columns: int) -> int:
    """Numbers per row of a mask with ``columns`` columns, padding included."""
    return -(-columns // ALIGNMENT) * ALIGNMENT


def mask_of_rows(mask: Tensor, rows: Tensor) -> Tensor:
    """Rows (R,) of a mask (B, 1, 1, L), laid out as the mask is."""
    columns = mask.size(-1)
    chosen = mask.new_empty(len(rows), 1, 1, aligned(columns))[..., :columns]
    return chosen.copy_(mask.index_select(0, rows))


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, W, L) or (B, L), what is not seen -> (B, 1, W or 1, L), -inf there and 0 elsewhere.

    fairseq reads a mask of numbers, which an encoder may give, as one of bool.
    """
    rows, columns = hidden.size(0), hidden.size(-1)
    shape = rows, 1, hidden.numel() // max(1, rows * columns), aligned(columns)
    mask = torch.zeros(shape, dtype=dtype, device=hidden.device)[..., :columns]
    return mask.masked_fill_(hidden.view(mask.shape).bool(), -torch.inf)
