"""Linear layers in 8 bits on CPU, for drafts: whatever a draft says is verified, so it needs no more precision.

oneDNN's operators for quantised models, private to torch as those of :mod:`fairseq_aggdec.decoding.linear`, are probed
first; without them drafts are computed as everything else.
"""

import functools
import logging
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.decoding.linear import FastLinear, in_huge_pages, joined, joined_bias

logger = logging.getLogger(__name__)

# Of a smaller weight the product takes less time than bringing its input to 8 bits.
LARGE_WEIGHT = 2**19
LEVELS, ZERO = 127, 128
KINDS = (torch.float32, torch.bfloat16)


@functools.cache
def int8_available() -> bool:
    """Whether this torch has oneDNN's linear in 8 bits and computes the right thing with it."""
    try:
        own = torch.Generator().manual_seed(1)
        x, weight, bias = (torch.randn(shape, generator=own) for shape in ((3, 16), (8, 16), (8,)))
        y = _Product(weight, bias, "relu")(x)
        return torch.allclose(y, F.linear(x, weight, bias).relu(), atol=0.2)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.info(
            "linear layers in 8 bits are not available in torch %s (%s)", torch.__version__, error
        )
        return False


class _Product:
    """``activation(x W^T + b)``: one scale per output for the weight, one for all of x, chosen when it is seen."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str):
        weight, bias = weight.float(), None if bias is None else bias.float()
        self.scales = (weight.abs().amax(1) / LEVELS).clamp_(min=1e-12)  # (C_out,)
        levels = (weight / self.scales.unsqueeze(1)).round_().to(torch.int8)
        self.packed = in_huge_pages(torch.ops.onednn.qlinear_prepack(levels, None))
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias, self.activation = bias, activation
        self.product = torch.ops.onednn.qlinear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        scale = max(float(x.abs().amax()) / LEVELS, 1e-12)
        levels = (x * (1 / scale)).round_().add_(ZERO).to(torch.uint8)
        y: Tensor = self.product(
            *(levels, scale, ZERO, self.packed, self.scales, self.zeros, self.bias),
            *(1.0, 0, torch.float32, self.activation, [], ""),
        )
        return y


class Int8Linear:
    """A :class:`FastLinear` in 8 bits: (N, C_in) -> (N, C_out) in the precision of its modules."""

    def __init__(self, modules: Sequence[nn.Linear], relu: bool = False):
        weight = joined([module.weight for module in modules])
        self.outputs = len(weight)
        self.product = _Product(weight, joined_bias(modules), "relu" if relu else "none")

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x.float()).to(x.dtype)

    def fill_up(self, x: Tensor) -> Tensor:
        return x


def linear(
    modules: Sequence[nn.Linear], relu: bool = False, pack: bool = True, int8: bool = False
) -> FastLinear | Int8Linear:
    """The layer in 8 bits where that was asked for, can be had and pays."""
    weights = [module.weight for module in modules]
    plain = all(weight.dtype in KINDS and weight.device.type == "cpu" for weight in weights)
    large = sum(weight.numel() for weight in weights) >= LARGE_WEIGHT
    if int8 and plain and large and int8_available():
        return Int8Linear(modules, relu)
    return FastLinear(modules, relu, pack)
