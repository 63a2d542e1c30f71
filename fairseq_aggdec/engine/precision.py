"""How a model computes: one object for all that run it."""

from dataclasses import dataclass
from typing import Any

import torch

from fairseq_aggdec.engine.graphs.conditions import tf32_allowed


@dataclass(frozen=True)
class Precision:
    """How a model computes; passed whole from the options to every layer.

    Attributes:
        pack: lay weights out once for the few rows of a window (fp32 and bf16 on a CPU). Takes a second copy of them.
        int8: compute products in 8 bits (fp32 and bf16 on a CPU). The result of a row does not depend on other rows.
        graphs: on a GPU, replay the calls of a decoder as captured graphs.
        strict: slots per row in every window of a batch (:mod:`fairseq_aggdec.windows.grid`); 0: as many as it needs.
        tf32: on a GPU, products of fp32 round to TF32, as PyTorch was set to when the options were read.
    """

    pack: bool = True
    int8: bool = False
    graphs: bool = False
    strict: int = 0
    tf32: bool = False


EXACT = Precision()


def precision_name(model: Any) -> str:
    """``fp32``, ``tf32``, ``fp16`` or ``bf16``: how the products of a model round."""
    weight = next(model.parameters())
    names = {torch.float16: "fp16", torch.bfloat16: "bf16"}
    plain = "tf32" if weight.is_cuda and tf32_allowed() else "fp32"
    return names.get(weight.dtype, plain)
