"""Faults that show only in the sizes that a model has are noticed before a kernel is used, in every precision."""

from __future__ import annotations

import shutil
from unittest import mock

import pytest
import torch

from fairseq_aggdec.cli import doctor
from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS
from tests.emulated.emulator import Changes, Emulator
from tests.strict.device.bookkeeping import COMPILER, fused_kernels

CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")

STRIDE = "group < {0}; group += blockDim.x"
MUTANTS: dict[str, tuple[str, Changes]] = {
    "each slot has the mask of the first": (
        "attention of windows",
        {"attention.cu": ("(slots[i].index - row * width) * p.mask_slot", "0 * p.mask_slot")},
    ),
    "only the first keys are read": (
        "attention of windows",
        {"attention.cu": ("start <= last; start += step)", "start <= last; start += step + keys)")},
    ),
    "every slot sees as far as there is anything": (
        "attention of windows",
        {"attention.cu": ("p.span < 0 ?", "true ?")},
    ),
    "a norm leaves out a warp's third chunk": (
        "layers for few rows",
        {"products.cu": ("if (!there || half >= halves)", "if (i >= 2 || !there || half >= halves)")},
    ),
    "n(x) of the second tile of rows is kept in the first": (
        "layers for few rows",
        {"products.cu": ("const int row = top + g + 8 * half;", "const int row = g + 8 * half;")},
    ),
    "only the first chunks are multiplied": (
        "layers for few rows",
        {"products.cu": ("if (base - warp >= chunks) break;", "break;")},
    ),
    "only the first parts of the logits are joined": (
        "steps of beam search with their candidates",
        {"beam.cu": ("lane + i * LANES < count ?", "lane + i * LANES < kept ?")},
    ),
    "padding before a source has positions": (
        "embeddings of sources",
        {"embedding.cu": ("if (tokens[i] != p.pad) counts", "counts")},
    ),
    "each tile has the weights of the first": (
        "logits of few slots",
        {"logits.cu": ("load_weights(tiles.warp, next)", "load_weights(tiles.warp, first)")},
    ),
    "all slots of a block ask what the first asks": (
        "attention to a source with its queries",
        {"cross.cu": ("queries + (slot - top)", "queries")},
    ),
    "only the first tiles of a head are asked": (
        "attention to a source with its queries",
        {"cross.cu": ("if (from >= end) break;", "break;")},
    ),
    "two words of a weight change places": (
        "layers for few rows",
        {"products.cu": ("weights[held].words[word + i]", "weights[held].words[word + 1 - i]")},
    ),
    "look reads the first groups only": (
        "accepting and committing",
        {"vocabulary.cu": (f"threadIdx.x; {STRIDE.format('end')}", "threadIdx.x; group < end; group += end")},
    ),
    "leaders reads the first groups only": (
        "likeliest tokens",
        {"beam.cu": ("from < end; from += threads", "from < end; from += end")},
    ),
    "largest reads the first groups only": (
        "largest logits",
        {"vocabulary.cu": (STRIDE.format("logits.groups()"), "group < logits.groups(); group += logits.groups()")},
    ),
}  # fmt: skip
# In fp32 a product has no tensor core.
NOT_THERE = "two words of a weight change places", torch.float32


def agrees(told: str, dtype: torch.dtype) -> bool:
    """Whether a probe finds nothing in a precision."""
    agree, *precisions = doctor.GPU_KERNELS[told]
    only: dict[torch.dtype, int] = {dtype: PRECISIONS[dtype]}
    with mock.patch.object(operators, "PRECISIONS", PRECISIONS if precisions else only):
        found: bool = agree(CPU, *([dtype] if precisions else []))
    return found


@pytest.mark.parametrize("fault", MUTANTS)
@torch.inference_mode()
def test_faults_are_noticed_in_every_precision(fault: str) -> None:
    told, changes = MUTANTS[fault]
    with fused_kernels(Emulator(changes=changes)):
        missed = [
            dtype for dtype in PRECISIONS if (fault, dtype) != NOT_THERE and agrees(told, dtype)
        ]
    assert missed == []


@torch.inference_mode()
def test_what_is_right_is_used() -> None:
    with fused_kernels(Emulator()):
        # In other precisions the unit tests try them, compiled as C++.
        assert all(agrees(told, torch.float16) for told in doctor.GPU_KERNELS)
