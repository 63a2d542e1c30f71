"""Tells how a model computes: one object for all that run it."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from fairseq_aggdec.engine.graphs.conditions import tf32_allowed
from fairseq_aggdec.kernels.library import multiplies_bf16
from fairseq_aggdec.kernels.stored import stands_for


@dataclass(frozen=True)
class Precision:
    """Tells how a model computes; passed whole from the options to every layer.

    Attributes:
        pack: lay weights out once for the few rows of a window (on a CPU). Takes a second copy of them.
        int8: compute products in 8 bits (models in fp32 on a CPU). The result of a row does not depend on other rows.
        graphs: on a GPU, replay the calls of a decoder as captured graphs.
        strict: slots per row in every window of a batch (:mod:`fairseq_aggdec.windows.grid`); 0: as many as it needs.
        bf16: products of what is in fp32 round their inputs to bfloat16 (:func:`in_fp32`).
        tf32: on a GPU, products of fp32 round to TF32, as PyTorch was set to when the options were read.
    """

    pack: bool = True
    int8: bool = False
    graphs: bool = False
    strict: int = 0
    bf16: bool = False
    tf32: bool = False


EXACT = Precision()
LAYERS = TransformerEncoderLayerBase, TransformerDecoderLayerBase


def precision_name(model: Any) -> str:
    """``fp32``, ``tf32``, ``fp16`` or ``bf16``: how the products of a model round."""
    weight = next(model.parameters())
    names = {torch.float16: "fp16", torch.bfloat16: "bf16"}
    plain = "tf32" if weight.is_cuda and tf32_allowed() else "fp32"
    return names.get(weight.dtype, plain)


def in_fp32(module: Any, precision: Precision) -> tuple[Any, Precision]:
    """The module that is packed, and the precision it computes in.

    A module in bfloat16 on a CPU, where the compiled library multiplies that: a copy of its parameters in fp32, and
    products that round their inputs to bfloat16. Between products nothing is rounded, and no row depends on others.
    Anything else: as it is.
    """
    weights = list(module.parameters())
    if not (precision.pack and weights and all(map(computes_bf16, weights))):
        return module, precision
    return _with_fp32_parameters(module, {}), replace(precision, bf16=True)


def computes_bf16(weight: Tensor) -> bool:
    """Tells whether the compiled library multiplies with a weight as one in bfloat16."""
    return weight.dtype is torch.bfloat16 and weight.device.type == "cpu" and multiplies_bf16()


def _with_fp32_parameters(
    module: nn.Module, known: dict[int, nn.Parameter], of_layer: bool = False
) -> nn.Module:
    """A module with parameters in fp32 that shares all else with the given one.

    Weights of a Transformer layer's products stay in bfloat16: they are packed in it. Sinusoids stay rounded to it, as
    stock fairseq has them: a buffer says so.

    Args:
        known: parameters that were converted, by what they were made of: some are shared.
        of_layer: it is part of a Transformer layer.
    """
    if of_layer and type(module) is nn.Linear:
        return module
    of_layer = of_layer or isinstance(module, LAYERS)
    copied = copy.copy(module)
    parameters = {name: weight for name, weight in module._parameters.items() if weight is not None}
    for weight in parameters.values():
        if id(weight) not in known:
            known[id(weight)] = nn.Parameter(weight.detach().float(), requires_grad=False)
            stands_for(weight, known[id(weight)])
    copied._parameters = module._parameters | {
        name: known[id(weight)] for name, weight in parameters.items()
    }
    copied._modules = {
        name: None if child is None else _with_fp32_parameters(child, known, of_layer)
        for name, child in module._modules.items()
    }
    return copied
