"""Attention to a source together with the product of its queries, in one launch on a GPU: ``source/cross.cu``.

:func:`read_source` has beside it the product and the attention, which may be kernels by themselves.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.kernels.gpu import products
from fairseq_aggdec.kernels.gpu.arguments import PRECISIONS
from fairseq_aggdec.kernels.gpu.attention import (
    RandomAttention,
    SlotAttention,
    attend_source,
    attends_alike,
    numbers_to_time,
    split,
)
from fairseq_aggdec.kernels.gpu.operators import Twins, ops, tries, usable
from fairseq_aggdec.kernels.gpu.products import Layers, Norm, NormLayer, computes_alike
from fairseq_aggdec.windows.grid import WORD, GridWindow
from fairseq_aggdec.windows.window import Window

TOGETHER = 2  # slots of a block


def read_source(
    asks: Any,
    x: Tensor,
    norm: NormLayer | None,
    before: bool,
    window: Window,
    memory: Tensor,
    mask: Tensor | None,
    layers: Layers,
    attention: SlotAttention,
) -> tuple[Tensor, Tensor]:
    """Returns where a residual connection begins, x (N, C) or ``norm(x)``, and what the slots read of a source (N, C).

    Args:
        asks: the linear layer of the queries, one of ``layers``.
        x, norm, before, layers: as of :func:`~fairseq_aggdec.kernels.gpu.products.read`.
        window: says where the slots stand.
        memory, mask: keys and values (2, B, H, S, D) of the source; additive, (B or 1, 1, 1, S), or None.
        attention: of the layer.
    """
    at_once = norm is not None and layers.few(len(x))
    at_once = at_once and attention.fused(window, memory.size(3), x) and crosses(x.device, x.dtype)
    if norm is None or not at_once:
        x, q = products.read(asks, x, norm, before, layers)
        return x, attention.source(q, window, memory, mask)
    kept = None if before else torch.empty_like(x)
    source = products.parameters(norm), memory, mask, window.width, kept
    attended = cross_attend(x, asks.transposed, asks.bias, *source)
    return x if kept is None else kept, attended


def crosses(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernel runs: it and those whose work it does."""
    probes = computes_alike, attends_alike, crosses_alike
    return all(usable(device, agree, dtype) for agree in probes)


def cross_attend(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Norm,
    memory: Tensor,
    mask: Tensor | None,
    width: int,
    kept: Tensor | None = None,
) -> Tensor:
    """Attention of the queries ``norm(x) W^T + b``.

    Args:
        x: (R W, C).
        weight, bias: W as (C, C), transposed in memory; b (C,), None: nothing is added.
        norm: of C channels.
        memory: keys and values (2, R, H, S, D) of sources.
        mask: additive, (R or 1, 1, 1, S); None: nothing is hidden.
        width: W, slots of a row.
        kept: (R W, C), where ``norm(x)`` is written; None: nowhere.

    Returns:
        (R W, C)
    """
    (slots, channels), (_, _, heads, keys, size) = x.shape, memory.shape
    out, of_mask = torch.empty_like(x), 0
    if mask is not None:
        mask = mask.to(x.dtype)  # in an ensemble it may be in the precision of another model
        of_mask = mask.stride(0) if mask.size(0) > 1 else 0
    blocks = heads * -(-slots // TOGETHER)
    steps = memory.stride(1), memory.stride(3), memory.stride(0)
    ops().cross_attend(
        *(blocks, PRECISIONS[x.dtype], slots, heads, size, width, keys, *steps, of_mask),
        *(norm.eps, 1 / channels, size**-0.5, x, weight.t(), bias, *norm[:2], memory, mask),
        *(kept, out),
    )
    return out


def _cross_twins(device: torch.device, rows: int, dtype: torch.dtype) -> Twins:
    numbers = numbers_to_time(device, rows, dtype)
    x, memory = numbers.qkv[:, : gpu.CHANNELS].contiguous(), split(numbers.memory, gpu.HEADS)
    chance = torch.Generator().manual_seed(7)
    made = torch.randn(gpu.CHANNELS + 3, gpu.CHANNELS, generator=chance).to(device, dtype)
    weight, bias, mask = made[3:].div(gpu.CHANNELS**0.5).t(), made[0], numbers.of_source
    norm = Norm(made[1], made[2], 1e-5)

    def plain() -> Tensor:
        grid = torch.addmm(bias, norm(x), weight).view(rows, 1, gpu.HEADS, -1).transpose(1, 2)
        attended = F.scaled_dot_product_attention(grid, memory[0], memory[1], mask)
        return attended.transpose(1, 2).flatten(0, 2)

    return Twins(lambda: cross_attend(x, weight, bias, norm, memory, mask, 1), plain)


@tries("cross_attend", twins=_cross_twins, precise=True)
def crosses_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernel gives in a precision what the two give in whose place it runs, bit for bit."""
    # One slot and slots of which a block has one alone; heads of one step and of several, inputs of every chunk.
    sizes = (1, 1, 2, 40), (3, 3, 8, 64), (1, 2, 3, 128)
    return all(cross_alike(dtype, device, *size, sources=9 + 60 * (size[0] > 1)) for size in sizes)


def cross_alike(
    dtype: torch.dtype,
    device: torch.device,
    rows: int,
    width: int,
    heads: int,
    size: int,
    sources: int = 9,
    biased: bool = True,
    seed: int = 7,
) -> bool:
    """Tells whether the kernel gives for random numbers what the products of few rows and :func:`attend_source` give.

    Args:
        dtype, device: of the numbers.
        rows, width, heads, size, sources: R, W, H, D, S.
        biased: the product has a bias.
        seed: of the numbers.
    """
    at = torch.arange(width, device=device).repeat(rows)
    window, channels = GridWindow(at, at, (rows, width, WORD)), heads * size
    numbers = RandomAttention(window, dtype, heads, size, sources, seed)
    x, memory = numbers.qkv[:, :channels].contiguous(), split(numbers.memory, heads)
    chance = torch.Generator().manual_seed(seed)
    made = torch.randn(channels + 3, channels, generator=chance).to(device, dtype)
    weight, bias = made[3:].div(channels**0.5).t(), made[0] if biased else None
    norm, kept = Norm(made[1], made[2], 1e-5), [torch.empty_like(x) for _ in range(2)]
    source = memory, numbers.of_source, width
    attended = cross_attend(x, weight, bias, norm, *source, kept[0])
    queries = products.product(x, weight, bias, norm=norm, kept=kept[1])
    return torch.equal(kept[0], kept[1]) and torch.equal(attended, attend_source(queries, *source))
