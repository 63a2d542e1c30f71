"""Linear layers and norms as the cached decoder runs them: the weights of a fairseq module, packed once on CPU.

``F.linear`` on CPU is slow for the four to twenty rows that a window has: it lays the weight out anew on every call.
The compiled kernels (:mod:`fairseq_aggdec.kernels`) have it laid out once; without them oneDNN does in fp32. Its
operators are private to torch, so they are probed first and everything falls back to what ``F.linear`` does.
"""

import functools
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.utils import get_activation_fn
from torch import Tensor, nn

from fairseq_aggdec.kernels.library import Product, kernels, multiplies_bf16
from fairseq_aggdec.kernels.stored import stands_for

logger = logging.getLogger(__name__)

# Numbers that PyTorch's loops over elements take at once on a CPU, at most: two vectors of 16.
VECTORS = 32
# More rows than this are filled up to a multiple of it where oneDNN multiplies.
FEWEST_FILLED = 4


def fast_kernels() -> bool:
    """Tells whether there are compiled products in fp32 that are faster than oneDNN's."""
    library = kernels()
    return library is not None and library.aggdec_instructions() > 0


@functools.cache
def packing_available() -> bool:
    """Tells whether this torch has oneDNN's packed linear on CPU for fp32 and computes the right thing with it."""
    try:
        # What is sampled later does not depend on the probe.
        chance = torch.Generator().manual_seed(1)
        x, weight, bias = (
            torch.randn(shape, generator=chance, dtype=torch.float32)
            for shape in ((3, 16), (8, 16), (8,))
        )
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        y = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "relu", [], "")
        return torch.allclose(y, F.linear(x, weight, bias).relu(), atol=1e-4)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.info(
            "packed CPU weights are not available in torch %s (%s)", torch.__version__, error
        )
        return False


@functools.cache
def multiplies_bfloat16() -> bool:
    """Tells whether this processor has instructions for products in bfloat16, as far as the system tells (else: yes).

    ``scripts/recipes/common.sh`` asks the same.
    """
    try:
        system = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return True
    return re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", system) is not None


def against_bfloat16() -> str | None:
    """Why models in bfloat16 are probably slower on this CPU than in fp32, None where they may be faster."""
    if multiplies_bf16() or (kernels() is None and multiplies_bfloat16()):
        return None
    return "without compiled kernels for it this processor multiplies bfloat16 slowly"


class FastLinear:
    """``activation(x W^T + b)`` for x of shape (N, C_in), several modules side by side counting as one.

    Args:
        modules: ``nn.Linear`` modules with equal C_in, concatenated along C_out (query, key, value in one product).
        relu: apply ReLU to the result.
        pack: lay the weight out once (fp32 on CPU); a copy of the weight.
        bf16: round weight and inputs, both fp32, to bfloat16; needs the compiled library, whatever ``pack`` is.
        stored: the product of these modules, packed already; None: it is packed here.

    Attributes:
        kernel: the product in the compiled library, None where that does not do it.
        transposed: (C_in, C_out) the weight as it is, None where another layout is used.
        bias_folded: what the result is added to has the bias already (:func:`fold_bias`).
    """

    def __init__(
        self,
        modules: Sequence[nn.Linear],
        relu: bool = False,
        pack: bool = True,
        bf16: bool = False,
        stored: Product | None = None,
    ):
        self.relu, self.bias_folded = relu, False
        self.packed: Tensor | None = None
        self.kernel: Product | None = stored
        self.transposed: Tensor | None = None
        if stored is not None:
            self.outputs, self.bias = stored.outputs, stored.bias
            return
        weight = joined([module.weight for module in modules])
        self.outputs, self.bias = weight.size(0), joined_bias(modules)
        pack = pack and weight.device.type == "cpu" and weight.dtype is torch.float32
        if bf16 or (pack and fast_kernels()):
            self.kernel = Product(weight, self.bias, relu, bf16=bf16)
        elif pack and packing_available():
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        else:
            self.transposed = weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel(x)
        if self.transposed is None:
            after, rows = "relu" if self.relu else "none", x.size(-2)
            if rows > FEWEST_FILLED:  # oneDNN compiles a product for every number of rows
                x = F.pad(x, (0, 0, 0, -rows % FEWEST_FILLED))
            product: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self.packed, self.bias, after, [], ""
            )
            return product if product.size(-2) == rows else product[..., :rows, :]
        return _product(x, self.transposed, self.bias, self.relu)

    def add_to(self, x: Tensor, y: Tensor) -> Tensor:
        """The results of y (N, C_in) added to x (N, C_out), which they may be written to."""
        if not self.bias_folded:
            return x + self(y)
        assert self.transposed is not None
        return x.addmm_(y, self.transposed)


def some_outputs(module: nn.Linear, rows: slice | Tensor) -> nn.Linear:
    """Some outputs of a linear layer as one of its own, its parameters shared where ``rows`` is a slice."""
    weight, bias = module.weight[rows], module.bias
    part = nn.Linear(weight.size(1), weight.size(0), bias is not None, device="meta")
    part.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        part.bias = nn.Parameter(bias[rows], requires_grad=False)
    if isinstance(rows, slice):
        whole = not rows.start and rows.stop is None
        named = "" if whole else f"[{rows.start or 0}:{rows.stop}]"
        stands_for(module.weight, part.weight, named)
        if bias is not None:
            stands_for(bias, part.bias, named)
    return part


def _product(x: Tensor, transposed: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """(..., C_in) -> (..., C_out): ``F.linear`` without the two calls that it makes before its product."""
    if bias is None or x.dim() != 2:
        y = F.linear(x, transposed.t(), bias)
        return y.relu_() if relu else y
    # With ReLU one launch on a GPU.
    return (torch._addmm_activation if relu else torch.addmm)(bias, x, transposed)


def joined(parameters: Sequence[Tensor]) -> Tensor:
    """Parameters side by side along the first dimension; one alone is not copied."""
    tensors = [parameter.detach() for parameter in parameters]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def joined_bias(modules: Sequence[Any]) -> Tensor | None:
    if all(module.bias is None for module in modules):
        return None
    return joined(
        [
            module.weight.new_zeros(module.out_features) if module.bias is None else module.bias
            for module in modules
        ]
    )


class FastNorm:
    """Layer norm over the last dimension: the parameters of a fairseq ``LayerNorm``, and biases that it carries."""

    def __init__(self, module: nn.LayerNorm):
        self.shape = tuple(module.normalized_shape)
        self.weight, self.eps = module.weight, module.eps
        self.bias: Tensor | None = module.bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


def optional_norm(module: nn.LayerNorm | None) -> FastNorm | None:
    return None if module is None else FastNorm(module)


def fold_bias(bias: Tensor | None, reader: FastLinear, product: FastLinear) -> Tensor | None:
    """The bias of what a residual connection begins at, with that of the product whose result is added to it.

    For GPUs, where each operator is a launch: the product is then added in place, and nothing is left to add. What
    reads on the way where the connection begins, ``reader``, takes the bias off again, in its own.
    """
    weight, old = reader.transposed, reader.bias
    if bias is None or old is None or product.bias is None or weight is None:
        return bias
    shift = product.bias.detach()
    # In fp32, also in half precision: rounded once.
    reader.bias = (old.detach().float() - shift.float() @ weight.float()).to(old.dtype)
    product.bias_folded = True
    return bias.detach() + shift


def fold_biases(bias: Tensor | None, layers: Sequence[Any]) -> Tensor | None:
    """:func:`fold_bias` in all decoder layers, whose norms follow; ``bias`` is of what the first reads."""
    first = layers[0]
    bias = fold_bias(bias, first.qkv, first.own_out)
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        block = layer.feed_forward
        connections = [
            (layer.own_norm, layer.cross_q, layer.cross_out),
            (layer.cross_norm, block.expand, block.contract),
        ]
        if following is not None:
            connections.append((block.norm, following.qkv, following.own_out))
        for norm, reader, added in connections:
            norm.bias = fold_bias(norm.bias, reader, added)
    return bias


def _alike(function: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """An elementwise function of (..., F). Rows are filled up: on a CPU PyTorch computes the last elements of a tensor,
    which fill no vector, in another way, so that it would count where a row stands."""
    width = hidden.size(-1)
    missing = -width % VECTORS if hidden.device.type == "cpu" else 0
    if not missing:
        return function(hidden)
    return function(F.pad(hidden, (0, missing)))[..., :width].contiguous()


class FastFeedForward:
    """The feed-forward block of a fairseq layer with its residual connection and norm (either placement).

    Dropout is left out: these blocks only ever run in evaluation mode.

    Args:
        layer: of an encoder or a decoder.
        linear: makes a :class:`FastLinear`, or what is used like one, of modules and ``relu``.

    Attributes:
        activation: between the products; None: ReLU, which is part of the first, or nothing.
    """

    def __init__(self, layer: Any, linear: Callable[..., Any]):
        activation = layer.activation_fn
        relu = activation in (F.relu, torch.relu)
        self.expand = linear([layer.fc1], relu=relu)
        self.contract = linear([layer.fc2])
        # fairseq's identity is made anew, of the same code, for every layer.
        identity = getattr(activation, "__code__", None) is get_activation_fn("linear").__code__
        self.activation = None if relu or identity else activation
        self.norm = FastNorm(layer.final_layer_norm)
        self.pre_norm = bool(layer.normalize_before)

    def __call__(self, x: Tensor) -> Tensor:
        hidden = self.activated(self.expand(self.norm(x) if self.pre_norm else x))
        x = self.contract.add_to(x, hidden)
        return x if self.pre_norm else self.norm(x)

    def activated(self, hidden: Tensor) -> Tensor:
        """Applies what is between the products: (..., F) -> (..., F)."""
        return hidden if self.activation is None else _alike(self.activation, hidden)
