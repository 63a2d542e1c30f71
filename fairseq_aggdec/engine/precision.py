"""How a model computes: one object for all that run it."""

import os
from dataclasses import dataclass
from typing import Any

import torch


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


def tf32_allowed() -> bool:
    """Whether products of fp32 on a GPU may round to TF32 now, by PyTorch's setting or the driver's variable."""
    forced = os.environ.get("NVIDIA_TF32_OVERRIDE")
    if forced in ("0", "1"):
        return forced == "1"
    matmul = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # set by its new name, which the old one does not follow
        return bool(matmul.fp32_precision == "tf32")


def set_tf32(allowed: bool) -> None:
    """Sets PyTorch's setting for products on a GPU, and no other."""
    matmul: Any = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = "tf32" if allowed else "ieee"
    else:
        matmul.allow_tf32 = allowed


def precision_name(model: Any) -> str:
    """``fp32``, ``tf32``, ``fp16`` or ``bf16``: how the products of a model round."""
    weight = next(model.parameters())
    names = {torch.float16: "fp16", torch.bfloat16: "bf16"}
    plain = "tf32" if weight.is_cuda and tf32_allowed() else "fp32"
    return names.get(weight.dtype, plain)
