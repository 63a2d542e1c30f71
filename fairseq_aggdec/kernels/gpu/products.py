"""Products of few rows on a GPU, each with all that is around it in one launch: ``source/products.cu``.

For few rows a layer costs launches and the time that its weights take to arrive, not arithmetic.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.kernels.gpu.arguments import aligned
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS, operators, tries

# Channels of a norm: what the registers hold.
MOST_NORMED = {torch.float16: 1024, torch.bfloat16: 1024, torch.float32: 512}
ROWS, OUTPUTS = 16, 8  # of a tile
HIGH = 1  # tiles of rows that a block computes: with 2 the weights are read once for 32 rows, by half of the blocks
# Rows up to which layers compute products with these kernels. Any number is right; every 16 read the weights.
MOST_ROWS = 32
MANY_BLOCKS = (
    96  # from here on a block computes two tiles: a GPU has places for not many more blocks
)


class Norm(NamedTuple):
    """A layer norm: weight and bias (C,), and what is added to the variance."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    relu: bool = False,
    norm: Norm | None = None,
    kept: Tensor | None = None,
    residual: Tensor | None = None,
    twice: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """``f(n(x) W^T + b) + r``.

    Args:
        x: (N, C_in).
        weight, bias: W as (C_in, C_out), transposed in memory; b (C_out,), None: nothing is added.
        relu: f is ReLU.
        norm: n; None: nothing.
        kept: (N, C_in), where n(x) is written; None: nowhere.
        residual: (N, C_out) r; None: nothing.
        twice: the product is rounded before r is added.
        out: (N, C_out), where it is written; None: a new tensor.

    Returns:
        (N, C_out)
    """
    (rows, inputs), outputs = x.shape, weight.size(1)
    y = x.new_empty(rows, outputs) if out is None else out
    # Where much is computed without a norm is one product of a model: not worth a kernel of its own.
    tiles = 1 + (
        norm is not None and x.dtype is not torch.float32 and outputs >= 2 * OUTPUTS * MANY_BLOCKS
    )
    across, down = -(-outputs // (OUTPUTS * tiles)), -(-rows // (ROWS * HIGH))
    gain, shift, eps = norm or (None, None, 0.0)
    operators().product(
        *(across * down, PRECISIONS[x.dtype], rows, inputs, outputs, across, tiles, HIGH),
        *(
            int(relu),
            int(twice),
            eps,
            1 / inputs,
            x,
            weight.t(),
            bias,
            gain,
            shift,
            residual,
            kept,
            y,
        ),
    )
    return y


def normed(x: Tensor, norm: Norm) -> Tensor:
    """A layer norm of x (N, C)."""
    y = torch.empty_like(x)
    operators().layer_norm(
        *(*x.shape[:1], PRECISIONS[x.dtype], x.size(1), norm.eps, x, *norm[:2], y)
    )
    return y


def readable(table: Tensor) -> bool:
    """Tells whether the kernels can read a table (M, C), or (C,): all rows start at multiples of 16 bytes."""
    return table.dtype in PRECISIONS and table.is_contiguous() and aligned(table)


def _random(dtype: torch.dtype, device: torch.device, *shape: int) -> Tensor:
    own = torch.Generator().manual_seed(
        sum(shape)
    )  # what is sampled later does not depend on the probe
    return torch.randn(shape, generator=own).to(device, dtype)


def _norm(dtype: torch.dtype, device: torch.device, channels: int) -> Norm:
    weight, bias = _random(dtype, device, 2, channels).unbind()
    return Norm(weight, bias, 1e-5)


def alike(
    dtype: torch.dtype, device: torch.device, size: tuple[int, int, int], choice: int
) -> bool:
    """Tells whether a product of random numbers is what PyTorch's operators give.

    Args:
        dtype, device: of the numbers.
        size: rows, inputs, outputs.
        choice: its bits ask for ReLU, a norm, a residual connection, a bias, a product that is rounded first.
    """
    rows, inputs, outputs = size
    relu, before, added, biased, twice = (bool(choice >> bit & 1) for bit in range(5))
    made = partial(_random, dtype, device)
    x, residual = made(rows, inputs), made(rows, outputs) if added else None
    weight, bias = (
        made(outputs, inputs).div_(inputs**0.5).t(),
        made(1, outputs)[0] if biased else None,
    )
    norm, kept = _norm(dtype, device, inputs) if before else None, torch.empty_like(x)
    own = product(x, weight, bias, relu=relu, norm=norm, kept=kept, residual=residual, twice=twice)
    if norm is not None:
        plain = norm(x)
        if not (_near(kept, plain) and _near(normed(x, norm), plain)):
            return False
        x = plain
    y = x.double() @ weight.double()
    y = y if bias is None else y + bias
    y = y.relu() if relu else y
    return _near(own, y if residual is None else y + residual)


def _near(own: Tensor, other: Tensor) -> bool:
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4}[own.dtype]
    return torch.allclose(own.double(), other.double(), tolerance, tolerance)


@tries("product", "layer_norm")
def computes_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernels give what PyTorch's operators give, for products of every kind."""
    # Rows of two tiles, inputs of every chunk of a warp, outputs of two tiles.
    sizes = (1, 64, 24), (17, 512, 24), (3, 64, 1536), (17, 2304, 8), (17, 1024, 1552)
    return all(
        alike(dtype, device, size, choice)
        for size in sizes
        for choice in (0b01000, 0b01001, 0b01010, 0b00100, 0b11100)
        if size[1] <= MOST_NORMED[dtype] or not choice & 2
        if size[1] * size[2] < 2**20 or choice & 2
    )
