"""Products of few rows on a GPU, each with all that is around it in one launch: ``source/products.cu``.

For few rows a layer costs launches and the time that its weights take to arrive, not arithmetic. Beside each launch
stand PyTorch's operators: :func:`read`, :func:`add`, :func:`read_each` and :func:`norm` choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.kernels.gpu.arguments import aligned
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS, Probe, Twins, ops, tries, usable

# Channels of a norm: what the registers hold.
MOST_NORMED = {torch.float16: 1024, torch.bfloat16: 1024, torch.float32: 512}
ROWS, OUTPUTS = 16, 8  # of a tile
HIGH = 1  # tiles of rows that a block computes: with 2 the weights are read once for 32 rows, by half of the blocks
# Rows up to which layers compute products with these kernels. Any number is right; every 16 read the weights.
MOST_ROWS = 32
# From this share of a GPU's processors on a block computes two tiles, because blocks of one would wait for a place.
MANY_BLOCKS = 8 / 11

T = TypeVar("T")


class Norm(NamedTuple):
    """A layer norm: weight and bias (C,), and what is added to the variance."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class NormLayer(Protocol):
    """A layer norm of a model, which PyTorch's operators compute when it is called."""

    @property
    def weight(self) -> Tensor:
        """(C,)"""

    @property
    def bias(self) -> Tensor | None:
        """(C,)"""

    @property
    def eps(self) -> float:
        """Number that is added to the variance."""

    def __call__(self, x: Tensor) -> Tensor: ...


class Layers:
    """Products and norms of a model: for few rows all of them run in the kernels, or none.

    Args:
        products: linear layers. Of those with a weight as it is, ``transposed`` (C_in, C_out) is that.
        norms: of the model.
        like: has the device and the dtype of the model.
        allowed: False: PyTorch's operators run in any case.
        beside: probes of other kernels that the model needs, too.
    """

    def __init__(
        self,
        products: Sequence[Any],
        norms: Sequence[NormLayer],
        like: Tensor,
        allowed: bool = True,
        beside: Sequence[Probe] = (),
    ):
        self.device, self.dtype, self.beside = like.device, like.dtype, beside
        self.fit = (
            allowed
            and all(norm_fits(one, like.dtype) for one in norms)
            and all(fits(one, like.dtype) for one in products)
        )

    def few(self, rows: int) -> bool:
        """Tells whether the kernels compute for that many rows."""
        if not self.fit or rows > MOST_ROWS:
            return False
        return all(
            usable(self.device, agree, self.dtype) for agree in (computes_alike, *self.beside)
        )

    def either(self, rows: int, fused: T, plain: T) -> T:
        """The first of two ways to compute that many rows where the kernels do, else the second."""
        return fused if self.few(rows) else plain


PLAIN = Layers((), (), torch.empty(0), allowed=False)  # PyTorch's operators


def read(
    layer: Any, x: Tensor, norm: NormLayer | None, before: bool, layers: Layers
) -> tuple[Tensor, Tensor]:
    """Returns where a residual connection begins, x (N, C) or ``norm(x)``, and what a linear layer makes of
    ``norm(x)``.

    Args:
        layer: a linear layer of ``layers``.
        x: (N, C).
        norm: None: nothing.
        before: the connection begins before the norm.
        layers: of the model.
    """
    if layers.few(len(x)):
        kept = None if before or norm is None else torch.empty_like(x)
        y = _fused(layer, x, norm=norm, kept=kept)
        return x if kept is None else kept, y
    normed = x if norm is None else norm(x)
    return x if before else normed, layer(normed)


def add(layer: Any, x: Tensor, y: Tensor, layers: Layers) -> Tensor:
    """The results of a linear layer of y (N, C_in) added to x (N, C_out), which they may be written to."""
    if layers.few(len(x)):
        return _fused(layer, y, residual=x)
    total: Tensor = layer.add_to(x, y)
    return total


def read_each(products: Sequence[Any], x: Tensor, layers: Layers) -> Sequence[Tensor] | Tensor:
    """Results (B, S, C_out) of several linear layers of x (B, S, C_in), side by side where the kernels compute them."""
    rows = x.flatten(0, 1)
    if not (layers.few(len(rows)) and all(fits(one, x.dtype) for one in products)):
        return [one(x) for one in products]
    outputs = x.new_empty(len(products), len(rows), products[0].outputs)
    for one, out in zip(products, outputs.unbind(0), strict=True):
        _fused(one, rows, out=out)
    return outputs.unflatten(1, x.shape[:2])


def norm(one: NormLayer, x: Tensor, layers: Layers) -> Tensor:
    """The norm of x (N, C)."""
    return normed(x, parameters(one)) if layers.few(len(x)) else one(x)


def parameters(one: NormLayer) -> Norm:
    """Parameters of a norm that fits the kernels."""
    assert one.bias is not None
    return Norm(one.weight, one.bias, one.eps)


def _fused(
    layer: Any,
    x: Tensor,
    norm: NormLayer | None = None,
    residual: Tensor | None = None,
    **rest: Any,
) -> Tensor:
    """A linear layer in one launch, see :func:`product`; rounded as ``add_to`` of the layer rounds."""
    added = residual is not None
    return product(
        *(x, layer.transposed, None if added and layer.bias_folded else layer.bias),
        relu=layer.relu,
        norm=None if norm is None else parameters(norm),
        residual=residual,
        twice=added and not layer.bias_folded,
        **rest,
    )


def fits(layer: Any, dtype: torch.dtype) -> bool:
    """Tells whether the kernels can compute a linear layer, for numbers of that kind."""
    weight = getattr(layer, "transposed", None)  # layers of other kernels have none
    return weight is not None and weight.dtype is dtype and readable(weight.t())


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
    high: int | None = None,
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
        high: tiles of rows that a block computes; None: ``HIGH``.

    Returns:
        (N, C_out)
    """
    (rows, inputs), outputs = x.shape, weight.size(1)
    y = x.new_empty(rows, outputs) if out is None else out
    # Where much is computed without a norm is one product of a model: not worth a kernel of its own.
    tiles = 1 + (
        norm is not None
        and x.dtype is not torch.float32
        and outputs >= 2 * OUTPUTS * round(MANY_BLOCKS * gpu.processors(x.device))
    )
    high = high or HIGH
    across, down = -(-outputs // (OUTPUTS * tiles)), -(-rows // (ROWS * high))
    gain, shift, eps = norm or (None, None, 0.0)
    ops().product(
        *(across * down, PRECISIONS[x.dtype], rows, inputs, outputs, across, tiles, high),
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
    ops().layer_norm(*(*x.shape[:1], PRECISIONS[x.dtype], x.size(1), norm.eps, x, *norm[:2], y))
    return y


def norm_fits(one: NormLayer, dtype: torch.dtype) -> bool:
    """Tells whether the kernels can compute a norm, for numbers of that kind."""
    weight, bias = one.weight, one.bias
    if weight is None or bias is None or weight.dim() != 1 or weight.dtype is not dtype:
        return False
    return readable(weight) and readable(bias) and len(weight) <= MOST_NORMED[dtype]


def readable(table: Tensor) -> bool:
    """Tells whether the kernels can read a table (M, C), or (C,): all rows start at multiples of 16 bytes."""
    return table.dtype in PRECISIONS and table.is_contiguous() and aligned(table)


def _random(dtype: torch.dtype, device: torch.device, *shape: int) -> Tensor:
    chance = torch.Generator().manual_seed(
        sum(shape)
    )  # what is sampled later does not depend on the probe
    return torch.randn(shape, generator=chance).to(device, dtype)


def _norm(dtype: torch.dtype, device: torch.device, channels: int) -> Norm:
    weight, bias = _random(dtype, device, 2, channels).unbind()
    return Norm(weight, bias, 1e-5)


def alike(
    dtype: torch.dtype,
    device: torch.device,
    size: tuple[int, int, int],
    choice: int,
    high: int | None = None,
) -> bool:
    """Tells whether a product of random numbers is what PyTorch's operators give.

    Args:
        dtype, device: of the numbers.
        size: rows, inputs, outputs.
        choice: its bits ask for ReLU, a norm, a residual connection, a bias, a product that is rounded first.
        high: as of :func:`product`.
    """
    rows, inputs, outputs = size
    relu, before, added, biased, twice = (bool(choice >> bit & 1) for bit in range(5))
    made = partial(_random, dtype, device)
    x, residual = made(rows, inputs), made(rows, outputs) if added else None
    x[1:2] = 0.5  # a row without variance
    weight, bias = (
        made(outputs, inputs).div_(inputs**0.5).t(),
        made(1, outputs)[0] if biased else None,
    )
    norm, kept = _norm(dtype, device, inputs) if before else None, torch.empty_like(x)
    rest = partial(product, norm=norm, kept=kept, residual=residual, twice=twice, high=high)
    ours = rest(x, weight, bias, relu=relu)
    if norm is not None:
        plain = norm(x)
        if not (_near(kept, plain) and _near(normed(x, norm), plain)):
            return False
        x = plain
    y = x.double() @ weight.double()
    y = y if bias is None else y + bias
    y = y.relu() if relu else y
    return _near(ours, y if residual is None else y + residual)


def _near(ours: Tensor, other: Tensor) -> bool:
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4}[ours.dtype]
    return torch.allclose(ours.double(), other.double(), tolerance, tolerance)


def _product_twins(device: torch.device, rows: int, dtype: torch.dtype) -> Twins:
    """A product with all that the kernel does beside it; the norm by itself is timed with it."""
    made = partial(_random, dtype, device)
    x, weight = (
        made(rows, gpu.CHANNELS),
        made(4 * gpu.CHANNELS, gpu.CHANNELS).div_(gpu.CHANNELS**0.5).t(),
    )
    bias, norm = made(1, 4 * gpu.CHANNELS)[0], _norm(dtype, device, gpu.CHANNELS)

    def fused() -> Tensor:
        return product(normed(x, norm), weight, bias, relu=True, norm=norm)

    def plain() -> Tensor:
        return torch.addmm(bias, norm(norm(x)), weight).relu_()

    return Twins(fused, plain)


@tries("product", "layer_norm", twins=_product_twins, precise=True)
def computes_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernels give what PyTorch's operators give, for products of every kind."""
    # Rows of two tiles, inputs of every chunk of a warp, outputs of two tiles; weights that a block reads twice.
    sizes = (1, 64, 24), (17, 512, 24), (3, 64, 1536), (17, 2304, 8), (17, 1024, 1552)
    cases = [(size, HIGH) for size in sizes]
    return _rounds_alike(device, dtype) and all(
        alike(dtype, device, size, choice, high)
        for size, high in [*cases, ((17, 4096, 8), 2)]
        for choice in (0b01000, 0b01001, 0b01010, 0b00100, 0b11100, 0b01101)
        if size[1] <= MOST_NORMED[dtype] or not choice & 2
        if size[1] * size[2] < 2**20 or choice & 2
    )


def _rounds_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether sums halfway between two numbers are rounded to the even one."""
    if dtype is torch.float32:  # sums are of fp32
        return True
    step, few = torch.finfo(dtype).eps, 8
    x = torch.zeros(few, 8)
    x[:, 0] = 1 + step * torch.arange(few)
    x[:, 1] = step / 2
    x[1::4] *= -1
    weight = torch.ones(8, 8, device=device, dtype=dtype).t()
    sums = product(x.to(device, dtype), weight, None)
    return torch.equal(sums[:, 0].cpu(), x.sum(1).to(dtype))
