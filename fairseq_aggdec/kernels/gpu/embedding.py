"""What a decoder reads at each position of a window on a GPU: in one launch, or by PyTorch's operators."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu


class MaskSlots(NamedTuple):
    """The mask slots of a window of N positions.

    Attributes:
        masked: (N,) bool, which they are.
        slot: (C,), what each reads in place of a token's embedding.
        copied: (N, C), what is added to that, not scaled; None: nothing.
    """

    masked: Tensor
    slot: Tensor
    copied: Tensor | None = None


class EmbeddingTables(NamedTuple):
    """Embeddings of tokens and of positions.

    Attributes:
        weight: (V, C). scale: of the weight.
        places: (P, C) of positions, None where there are none.
    """

    weight: Tensor
    scale: float
    places: Tensor | None


def plain(tokens: Tensor, at: Tensor, table: EmbeddingTables, masks: MaskSlots | None) -> Tensor:
    """Tokens (N,) at positions (N,) as vectors (N, C)."""
    x, scale = F.embedding(tokens, table.weight), table.scale
    if masks is not None:
        slot = masks.slot
        if masks.copied is not None:
            slot, x, scale = torch.add(masks.copied, slot, alpha=scale), x * scale, 1.0
        x = torch.where(masks.masked.unsqueeze(1), slot, x)
    if table.places is not None:
        return torch.add(table.places[at], x, alpha=scale)
    return x if scale == 1.0 else x * scale


def fused(tokens: Tensor, at: Tensor, table: EmbeddingTables, masks: MaskSlots | None) -> Tensor:
    """:func:`plain` in one launch; sums are rounded once."""
    weight = table.weight
    out = weight.new_empty(len(tokens), weight.size(1))
    sizes = *out.shape, gpu.PRECISIONS[weight.dtype], at.stride(0)
    given = *sizes, table.scale, tokens, weight, at, table.places
    gpu.operators().embedding(*given, *(masks or (None, None, None)), out)
    return out


def embedded(
    tokens: Tensor, at: Tensor, table: EmbeddingTables, masks: MaskSlots | None = None
) -> Tensor:
    """:func:`plain`, fused where that can be."""
    known = table.weight.dtype in gpu.PRECISIONS and table.weight.is_contiguous()
    usable = known and gpu.usable(tokens.device, embeds_alike)
    return (fused if usable else plain)(tokens, at, table, masks)


def embeds_alike(device: torch.device) -> bool:
    """Whether both read the same, with and without positions and mask slots, in every precision."""
    chance = torch.Generator().manual_seed(7)
    tokens, at = (torch.randint(0, 9, (5,), generator=chance).to(device) for _ in range(2))
    masked = torch.tensor([False, True, False, True, True]).to(device)
    for dtype in gpu.PRECISIONS:
        # Numbers whose sums are not rounded.
        numbers = torch.randint(-8, 8, (5, 9, 70), generator=chance).to(dtype).to(device)
        weight, places, copied = numbers[0], numbers[1], numbers[2, :5]
        for positions in (places, None):
            table = EmbeddingTables(weight, 0.5, positions)
            for masks in (None, MaskSlots(masked, weight[0]), MaskSlots(masked, weight[0], copied)):
                given = tokens, at, table, masks
                if not torch.equal(plain(*given).cpu(), fused(*given).cpu()):
                    return False
    return True
