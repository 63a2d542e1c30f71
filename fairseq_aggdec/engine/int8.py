"""Linear layers in 8 bits on CPU that are exact to themselves: a row's result does not depend on the rows beside it.

Weights have a scale per output, inputs a scale and a zero point per row. So the sums are of integers, exact in any
order, and everything else is done number by number. The compiled kernels do it; :class:`PlainProduct` gives the same
bits in PyTorch's operators.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairseq_aggdec.engine.linear import FastLinear, joined, joined_bias
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.kernels.library import Product, in_levels, kernels
from fairseq_aggdec.kernels.mapped import give_back
from fairseq_aggdec.kernels.stored import counted, find, kind_of, note

SMALLEST_RANGE = 1e-12  # of a row, as kernels.cpp has it
KINDS = (torch.float32, torch.bfloat16)


def int8_available() -> bool:
    """Tells whether there are compiled products in 8 bits, which are faster than those in fp32."""
    return kernels() is not None


def row_levels(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (N, K) fp32 in 8 bits: levels 0 to 255 (N, K) fp32, scales and zero points (N, 1) fp32.

    A number is scale * (level - zero point); 0 is a level of every row. A row whose range is not finite, or that holds
    NaN, has the scale NaN, and all that is multiplied with it is NaN.
    """
    low = x.amin(-1, keepdim=True).clamp_(max=0.0)
    span = (x.amax(-1, keepdim=True).clamp_(min=0.0) - low).clamp_(min=SMALLEST_RANGE)
    span += span - span  # 0, or NaN where the span is infinite
    # One rounding, as the compiled kernels divide: `255.0 / span` would be 255 times a rounded reciprocal.
    inverse = torch.full_like(span, 255.0) / span
    zero = (-low * inverse).round_().nan_to_num_()
    levels = (x * inverse).round_().add_(zero).nan_to_num_().clamp_(0.0, 255.0)
    return levels, span * (1 / 255), zero


class PlainProduct:
    """``activation(x W^T + b)`` in 8 bits in PyTorch's operators: x (N, K) fp32 on CPU -> (N, O)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool):
        levels, self.scales = in_levels(weight)
        self.levels, self.sums = levels.t().double(), levels.sum(1, dtype=torch.int32)
        self.bias, self.relu = bias, relu

    def __call__(self, x: Tensor) -> Tensor:
        levels, scales, zeros = row_levels(x.flatten(0, -2))
        # exact below 2**53
        sums = (levels.double() @ self.levels).int() - zeros.int() * self.sums
        y = (sums.float() * scales * self.scales).view(*x.shape[:-1], -1)
        if self.bias is not None:
            y += self.bias
        return y.relu_() if self.relu else y


class Int8Linear:
    """A :class:`~fairseq_aggdec.engine.linear.FastLinear` in 8 bits: (N, C_in) -> (N, C_out).

    Attributes:
        kernel: the product in the compiled library, None where there is none.
    """

    bias_folded = False  # its bias is its own

    def __init__(
        self, modules: Sequence[nn.Linear], relu: bool = False, stored: Product | None = None
    ):
        self.dtype = modules[0].weight.dtype
        self.kernel: Product | None = stored
        self.product: Product | PlainProduct
        if stored is not None:
            self.outputs, self.product = stored.outputs, stored
            return
        weight, bias = joined([module.weight for module in modules]), joined_bias(modules)
        bias = None if bias is None else bias.detach().float()
        self.outputs = len(weight)
        self.kernel = Product(weight, bias, relu, int8=True) if kernels() is not None else None
        self.product = self.kernel or PlainProduct(weight, bias, relu)

    def __call__(self, x: Tensor) -> Tensor:
        if self.dtype is torch.float32:
            return self.product(x)
        return self.product(x.float()).to(x.dtype)

    def add_to(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self(y)


def linear(
    modules: Sequence[nn.Linear], precision: Precision = EXACT, relu: bool = False
) -> FastLinear | Int8Linear:
    """The layer in 8 bits where that was asked for and can be had."""
    weights = [module.weight for module in modules]
    if precision.int8 and all(w.dtype in KINDS and w.device.type == "cpu" for w in weights):
        stored = find("int8", relu, modules)
        made: FastLinear | Int8Linear = Int8Linear(modules, relu, stored)
    else:
        packs = precision.pack or precision.bf16
        stored = find(kind_of(False, precision.bf16), relu, modules) if packs else None
        made = FastLinear(modules, relu, precision.pack, precision.bf16, stored)
    if made.kernel is not None:
        counted(stored is not None)
    if made.kernel is not None and stored is None:
        int8 = made.kernel.scales is not None
        note(kind_of(int8, precision.bf16), relu, weights, made.kernel)
        for weight in weights:
            give_back(weight)
    return made
