"""Attention to a source together with the product of its queries: one launch on a GPU where there are few slots."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_aggdec.engine.attention import RandomAttention, attend_source, attends_alike
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS, operators, tries, usable
from fairseq_aggdec.kernels.gpu.products import Norm, computes_alike, product
from fairseq_aggdec.windows.grid import WORD, GridWindow

TOGETHER = 2  # slots of a block, as in source/cross.cu


def runs(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernel runs: it and those whose work it does."""
    probes = computes_alike, attends_alike, reads_alike
    return all(usable(device, agree, dtype) for agree in probes)


def attend(
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
    operators().cross_attend(
        *(blocks, PRECISIONS[x.dtype], slots, heads, size, width, keys, *steps, of_mask),
        *(norm.eps, 1 / channels, size**-0.5, x, weight.t(), bias, *norm[:2], memory, mask),
        *(kept, out),
    )
    return out


@tries("cross_attend")
def reads_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernel gives in a precision what the two give in whose place it runs, bit for bit."""
    # One slot and slots of which a block has one alone; heads of one step and of several, inputs of every chunk.
    sizes = (1, 1, 2, 40), (3, 3, 8, 64), (1, 2, 3, 128)
    return all(alike(dtype, device, *size, sources=9 + 60 * (size[0] > 1)) for size in sizes)


def alike(
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
    """Tells whether the kernel gives for random numbers what :func:`product` and :func:`attend_source` give.

    Args:
        dtype, device: of the numbers.
        rows, width, heads, size, sources: R, W, H, D, S.
        biased: the product has a bias.
        seed: of the numbers.
    """
    at = torch.arange(width, device=device).repeat(rows)
    window, channels = GridWindow(at, at, (rows, width, WORD)), heads * size
    numbers = RandomAttention(window, dtype, heads, size, sources, seed)
    x, memory = numbers.qkv[:, :channels].contiguous(), numbers.memory
    memory = memory.unflatten(2, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    own = torch.Generator().manual_seed(seed)
    made = torch.randn(channels + 3, channels, generator=own).to(device, dtype)
    weight, bias = made[3:].div(channels**0.5).t(), made[0] if biased else None
    norm, kept = Norm(made[1], made[2], 1e-5), [torch.empty_like(x) for _ in range(2)]
    given = memory, numbers.of_source, width
    found = attend(x, weight, bias, norm, *given, kept[0])
    queries = product(x, weight, bias, norm=norm, kept=kept[1])
    return torch.equal(kept[0], kept[1]) and torch.equal(found, attend_source(queries, *given))
