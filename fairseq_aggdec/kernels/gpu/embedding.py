"""Embeddings that a decoder reads at each position of a window on a GPU: in one launch, or by PyTorch's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.kernels.gpu.arguments import aligned
from fairseq_aggdec.kernels.gpu.attention import attends_alike, reads_heads
from fairseq_aggdec.kernels.gpu.products import Layers, NormLayer

MOST_SOURCES = 4096  # tokens of a source that the kernel copies from


class EmbeddingTables(NamedTuple):
    """Embeddings of tokens and of positions.

    Attributes:
        weight: (V, C). scale: of the weight.
        places: (P, C) of positions, None where there are none.
    """

    weight: Tensor
    scale: float
    places: Tensor | None


class SourceCopy(NamedTuple):
    """Source copies of mask slots: embeddings of their row's source, weighted by what the slot's position asks for.

    Attributes:
        queries: (P, C), of each position.
        memory: (R, S, 2C), keys and embeddings of the sources, side by side.
        mask: additive, (R, 1, 1, S), or None.
    """

    queries: Tensor
    memory: Tensor
    mask: Tensor | None

    def at(self, positions: Tensor) -> Tensor:
        """(R W, C), what slots at these positions (R W,) copy."""
        keys, embedding = self.memory.unsqueeze(1).chunk(2, dim=-1)  # (R, 1, S, C)
        queries = self.queries[positions].view(len(keys), 1, -1, keys.size(-1))
        attend = F.scaled_dot_product_attention
        return attend(queries, keys, embedding, self.mask, scale=1.0).flatten(0, 2)


class MaskSlots(NamedTuple):
    """The mask slots of a window of N positions.

    Attributes:
        masked: (N,) bool, which they are.
        slot: (C,), what each reads in place of a token's embedding.
        copied: what is added to that; None: nothing.
    """

    masked: Tensor
    slot: Tensor
    copied: SourceCopy | None = None


def plain(tokens: Tensor, at: Tensor, tables: EmbeddingTables, masks: MaskSlots | None) -> Tensor:
    """Tokens (N,) at positions (N,) as vectors (N, C)."""
    x, scale = F.embedding(tokens, tables.weight), tables.scale
    if masks is not None:
        slot = masks.slot
        if masks.copied is not None:
            slot, x, scale = torch.add(masks.copied.at(at), slot, alpha=scale), x * scale, 1.0
        x = torch.where(masks.masked.unsqueeze(1), slot, x)
    if tables.places is not None:
        return torch.add(tables.places[at], x, alpha=scale)
    return x if scale == 1.0 else x * scale


def fused(tokens: Tensor, at: Tensor, tables: EmbeddingTables, masks: MaskSlots | None) -> Tensor:
    """:func:`plain` in one launch; sums are rounded once."""
    weight, count = tables.weight, len(tokens)
    out = weight.new_empty(count, weight.size(1))
    masked, slot, copied = masks or (None, None, None)
    source: tuple[int | Tensor | None, ...] = 1, 0, 0, 0, None, None, None
    if copied is not None:
        memory, mask = copied.memory, copied.mask
        steps = memory.stride(0), 0 if mask is None else mask.stride(0)
        source = count // len(memory), memory.size(1), *steps, *copied
    sizes = *out.shape, gpu.PRECISIONS[weight.dtype], at.stride(0)
    arguments = *sizes, tables.scale, tokens, weight, at, tables.places, masked, slot
    gpu.ops().embedding(*arguments, *source, out)
    return out


def embedded(
    tokens: Tensor, at: Tensor, tables: EmbeddingTables, masks: MaskSlots | None = None
) -> Tensor:
    """:func:`plain`, fused where that can be."""
    weight, copied = tables.weight, None if masks is None else masks.copied
    known = weight.dtype in gpu.PRECISIONS and weight.is_contiguous()
    if copied is not None:
        _, length, width = copied.memory.shape
        known = known and length <= MOST_SOURCES and width % 16 == 0
        known = known and copied.memory.stride(1) == width and aligned(copied.memory)
    known_embed = fused if known else plain
    embed = gpu.either(known_embed, plain, tokens.device, embeds_alike, weight.dtype)
    return embed(tokens, at, tables, masks)


class PlacedSources(NamedTuple):
    """Sources (R, L) as an encoder reads them.

    Attributes:
        embeddings: (R, L, C) of the tokens, scaled.
        hidden: (R, L) bool, padding.
        lengths: (R, 1) int32.
        x: (R, L, C), with positions; 0 at padding.
        mask: additive, (R, 1, 1, L).
    """

    embeddings: Tensor
    hidden: Tensor
    lengths: Tensor
    x: Tensor
    mask: Tensor


def plain_sources(tokens: Tensor, tables: EmbeddingTables, pad: int) -> PlacedSources:
    """Sources (R, L) with padding before them."""
    hidden = tokens.eq(pad)
    real = ~hidden
    x = embeddings = tables.scale * F.embedding(tokens, tables.weight)
    if tables.places is not None:
        x = x + F.embedding((real.cumsum(1) - 1).clamp_(min=0), tables.places)
    lengths = real.sum(1, keepdim=True, dtype=torch.int32)
    mask = torch.zeros_like(hidden, dtype=x.dtype).masked_fill_(hidden, -torch.inf)
    x = x.masked_fill(hidden.unsqueeze(-1), 0)
    return PlacedSources(embeddings, hidden, lengths, x, mask.view(len(x), 1, 1, -1))


def fused_sources(
    tokens: Tensor, tables: EmbeddingTables, pad: int, kept: Sequence[Tensor] = ()
) -> PlacedSources:
    """:func:`plain_sources` in one launch; ``kept``: where the first three are written, else new ones are."""
    weight, shape = tables.weight, tokens.shape
    x = weight.new_empty(*shape, weight.size(1))
    embeddings, hidden, lengths = kept or (
        torch.empty_like(x),
        tokens.new_empty(shape, dtype=torch.bool),
        tokens.new_empty(shape[0], 1, dtype=torch.int32),
    )
    mask = weight.new_empty(shape[0], 1, 1, shape[1])
    gpu.ops().sources(
        *(tokens.numel(), gpu.PRECISIONS[weight.dtype], weight.size(1), shape[1], pad),
        *(tables.scale, tokens, weight, tables.places, embeddings, x, mask, hidden, lengths),
    )
    return PlacedSources(embeddings, hidden, lengths, x, mask)


def source_layers(
    products: Sequence[Any],
    norms: Sequence[NormLayer],
    heads: Sequence[int],
    like: Tensor,
    allowed: bool,
) -> Layers:
    """Makes the layers of an encoder, which run in kernels where these place sources and attend, too.

    Args:
        products, norms: of the encoder.
        heads: of each layer.
        like: (V, C), the embeddings.
        allowed: False: PyTorch's operators run in any case.
    """
    fit = allowed and like.is_contiguous()
    fit = fit and all(reads_heads(like.size(1) // count) for count in heads)
    return Layers(products, norms, like, fit, beside=(attends_alike, places_alike))


def _tables(device: torch.device, dtype: torch.dtype) -> EmbeddingTables:
    chance = torch.Generator().manual_seed(7)
    weight = torch.randn(gpu.TYPES, gpu.CHANNELS, generator=chance).to(device, dtype)
    return EmbeddingTables(weight, 22.0, weight[:1024])


def _source_twins(device: torch.device, rows: int, dtype: torch.dtype) -> gpu.Twins:
    tables, tokens = _tables(device, dtype), torch.full((rows, 32), 7, device=device)
    tokens[:, :5] = 1
    return gpu.Twins(
        lambda: fused_sources(tokens, tables, 1), lambda: plain_sources(tokens, tables, 1)
    )


@gpu.tries("sources", twins=_source_twins, precise=True)
def places_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether both place sources alike in a precision, with and without positions."""
    chance = torch.Generator().manual_seed(7)
    tokens = torch.randint(2, 9, (3, 270), generator=chance).to(device)
    tokens.masked_fill_(torch.arange(270, device=device) < tokens[:, :1] * 30, 1)
    weight, places = torch.randn(2, 280, 80, generator=chance).to(dtype).to(device)
    for table in (places, None):
        sources = tokens, EmbeddingTables(weight[:9], 3.0, table), 1
        for plain_part, by_kernel in zip(
            plain_sources(*sources), fused_sources(*sources), strict=True
        ):
            if not torch.allclose(plain_part.cpu().float(), by_kernel.cpu().float(), atol=1e-5):
                return False
    return True


def _embedding_twins(device: torch.device, rows: int, dtype: torch.dtype) -> gpu.Twins:
    tables, tokens = _tables(device, dtype), torch.arange(rows, device=device)
    arguments = tokens, tokens, tables, None
    return gpu.Twins(lambda: fused(*arguments), lambda: plain(*arguments))


@gpu.tries("embedding", twins=_embedding_twins, precise=True)
def embeds_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether both read the same, with and without positions and mask slots, in a precision."""
    chance = torch.Generator().manual_seed(7)
    tokens, at = (torch.randint(0, 9, (6,), generator=chance).to(device) for _ in range(2))
    masked = torch.tensor([False, True, False, True, True, True]).to(device)
    # Halves, and a weight of nearly 1 for one key.
    numbers = torch.randint(-8, 8, (3, 9, 80), generator=chance).to(dtype).to(device)
    weight, places, queries = numbers.unbind(0)
    memory = torch.randint(-8, 8, (2, 5, 160), generator=chance).to(dtype).to(device)
    mask = torch.tensor([0.0, 0, -torch.inf, 0, 0]).to(dtype).to(device).expand(2, 1, 1, 5)
    copied = SourceCopy(queries, memory, mask)
    for positions in (places, None):
        tables = EmbeddingTables(weight, 0.5, positions)
        for masks in (None, MaskSlots(masked, weight[0]), MaskSlots(masked, weight[0], copied)):
            arguments = tokens, at, tables, masks
            if not torch.allclose(plain(*arguments).cpu(), fused(*arguments).cpu(), atol=0.1):
                return False
    return True
