"""Logits of few slots of a GPU, with the norm before them, in one launch: ``source/logits.cu``.

:func:`project` has beside it the norm and the product by PyTorch's operators.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.kernels.gpu import products
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS, Twins, ops, tries, usable
from fairseq_aggdec.kernels.gpu.products import MOST_NORMED, Layers, Norm, NormLayer, product

WORDS_SEEN = 5  # of 4 bytes, what is known of a part of a slot's logits
ROWS, GROUP = 16, 8  # slots of a block, logits that are read at once
FEWEST, MOST = 4, 32  # groups of a part: the block's tiles are full, a lane of a warp has one


class RuledTokens(NamedTuple):
    """Tokens that rules may change: padding, the unknown word, ``</s>``."""

    pad: int
    unk: int
    eos: int


def groups_of_a_part(types: int, processors: int) -> int:
    """Number of groups of eight logits that a block computes: at most 32, and all processors get as many blocks, one at
    a time."""
    groups = -(-types // GROUP)
    turns = -(-groups // (processors * MOST))
    return -(-groups // -(-groups // max(FEWEST, -(-groups // (processors * turns)))))


def project(
    layer: Any, x: Tensor, norm: NormLayer, layers: Layers, symbols: RuledTokens | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Projects ``norm(x)`` to the V types of a vocabulary.

    Args:
        layer: the projection.
        x: (N, C).
        norm: of C channels.
        layers: of the model.
        symbols: as of :func:`logits`.

    Returns:
        the logits (N, V), ``norm(x)`` (N, C), and what the parts of the logits come to, as of :func:`logits`; None
        where PyTorch's operators project.
    """
    fits = layers.few(len(x)) and products.fits(layer, x.dtype)
    if fits and usable(x.device, projects_alike, x.dtype):
        more = products.parameters(norm), symbols
        return logits(x, layer.transposed, layer.bias, *more)
    features = products.norm(norm, x, layers)
    return layer(features), features, None


def logits(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Norm,
    symbols: RuledTokens | None = None,
    each: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``norm(x) W^T + b``.

    Args:
        x: (N, C).
        weight, bias: W as (C, V), transposed in memory; b (V,), None: nothing is added.
        norm: of C channels.
        symbols: given where it is wanted what the parts of the logits come to.
        each: groups of eight logits of a part; None: as many as keep a GPU busy.

    Returns:
        the logits (N, V), ``norm(x)`` (N, C), and what the kernel ``look`` would find in each of P parts, (N, P, 5)
        int32; None: not wanted, or V is no multiple of 8.
    """
    (slots, channels), types = x.shape, weight.size(1)
    each = each or groups_of_a_part(types, gpu.processors(x.device))
    parts = -(-types // (GROUP * each))
    y, kept, seen = x.new_empty(slots, types), torch.empty_like(x), None
    if symbols is not None and types % GROUP == 0:
        seen = x.new_empty(slots, parts, WORDS_SEEN, dtype=torch.int32)
    ops().logits(
        *(parts * -(-slots // ROWS), PRECISIONS[x.dtype], slots, channels, types, parts, each),
        *(symbols or (-1, -1, -1)),
        *(norm.eps, 1 / channels, x, weight.t(), bias, *norm[:2], kept, y, seen),
    )
    return y, kept, seen


def _logits_twins(device: torch.device, rows: int, dtype: torch.dtype) -> Twins:
    chance = torch.Generator().manual_seed(7)
    made = torch.randn(rows + 2, gpu.CHANNELS, generator=chance).to(device, dtype)
    weight = (
        torch.randn(gpu.TYPES, gpu.CHANNELS, generator=chance)
        .div_(gpu.CHANNELS**0.5)
        .to(device, dtype)
        .t()
    )
    x, norm = made[2:], Norm(made[0], made[1], 1e-5)
    return Twins(lambda: logits(x, weight, None, norm), lambda: norm(x) @ weight)


@tries("logits", twins=_logits_twins, precise=True)
def projects_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernel gives in a precision what those give in whose place it runs, bit for bit."""
    # Slots of two blocks, inputs of every chunk, parts of several turns of which the last is short.
    sizes = (1, 64, 40, 3), (17, 512, 1072, 27), (2, 1024, 1024, 32), (3, 64, 43, 3)
    return all(
        alike(dtype, device, *size, biased=size[0] > 1)
        for size in sizes
        if size[1] <= MOST_NORMED[dtype]
    )


def alike(
    dtype: torch.dtype,
    device: torch.device,
    slots: int,
    channels: int,
    types: int,
    each: int,
    biased: bool = False,
    seed: int = 7,
) -> bool:
    """Tells whether the kernel gives for random numbers what ``product`` and ``look`` give.

    Args:
        dtype, device: of the numbers.
        slots, channels, types, each: N, C, V, groups of a part.
        biased: the product has a bias.
        seed: of the numbers.
    """
    chance = torch.Generator().manual_seed(seed)
    made = torch.randn(slots + 2, channels, generator=chance).to(device, dtype)
    weight = torch.randn(types, channels, generator=chance).div_(channels**0.5).to(device, dtype)
    bias = torch.randn(types, generator=chance).to(device, dtype) if biased else None
    x, norm, symbols = made[2:], Norm(made[0], made[1], 1e-5), RuledTokens(1, 3, 2)
    ours, kept, seen = logits(x, weight.t(), bias, norm, symbols, each)
    normed = torch.empty_like(x)
    wanted = product(x, weight.t(), bias, norm=norm, kept=normed)
    same = torch.equal(ours, wanted) and torch.equal(kept, normed)
    return same and (seen is None or torch.equal(seen, _looked(wanted, seen, symbols)))


def _looked(logits: Tensor, like: Tensor, symbols: RuledTokens) -> Tensor:
    """Findings of ``look`` in as many parts of logits (N, V): (N, P, 5)."""
    (slots, types), parts, seen = logits.shape, like.size(1), torch.empty_like(like)
    numbers = torch.zeros(max(slots, 8), 1, dtype=torch.long, device=logits.device)
    sizes = 1, 1, parts, types, 0, PRECISIONS[logits.dtype]
    ops().look(
        *(slots * parts, *sizes, *symbols, 0.0, 0, 0, 0, 0, 0.0, numbers, numbers, logits),
        *(None, numbers, None, seen, None, *[numbers] * 2, numbers, *[numbers] * 4, None),
        *(logits, 0),
    )
    return seen
