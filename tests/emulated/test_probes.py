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

DEPTH = "const Int depth = "
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
    "later chunks of weights are not read anew for the next rows": (
        "layers for few rows",
        {"products.cu": ("if (chunks > DEPTH * warps) load_weights(warp, first);", "")},
    ),
    "sums begin with those of the rows before": (
        "layers for few rows",
        {"products.cu": ("        take_up(first);", "")},
    ),
    "sums begin with those of the tile before": (
        "logits of few slots",
        {"logits.cu": ("tiles.take_up(next);", "tiles.first = next, tiles.end = tiles.end_of(next);")},
    ),
    "halves are rounded up": (
        "layers for few rows",
        {"shared.h": ("(bits + 0x7fff + odd) >> 16", "(bits + 0x8000) >> 16")},
    ),
    "ReLU comes behind what is added": (
        "layers for few rows",
        {
            "products.cu": (
                "if (p.relu && y < 0) y = 0;",
                "if (p.relu && y + added[item] < 0) y = -added[item];",
            )
        },
    ),
    "a norm adds nothing to the variance": (
        "layers for few rows",
        {
            "products.cu": (
                "over_lanes(squares) * share + static_cast<float>(p.eps)",
                "over_lanes(squares) * share",
            )
        },
    ),
    "biases of logits are left out": (
        "logits of few slots",
        {"logits.cu": ("narrow(y + biases[item], static", "narrow(y, static")},
    ),
    "biases of queries are left out": (
        "attention to a source with its queries",
        {"cross.cu": ("narrow(y + biases[item], narrowed)", "narrow(y, narrowed)")},
    ),
    "biases of a chain are those of the first types": (
        "chain of a drafter",
        {"chain.cu": ("[rows[i] / (unsigned)p.channels]", "[i]")},
    ),
    "positions of sources begin at 1": (
        "embeddings of sources",
        {"embedding.cu": ("before > 0 ? before - 1 : 0", "before")},
    ),
    "values of the window are its keys": (
        "attention of windows",
        {"attention.cu": ("from + value_step + part", "from + (in_window ? 0 : value_step) + part")},
    ),
    "values of the window are not kept": (
        "attention of windows",
        {"attention.cu": ("n < 2 * size", "n < size")},
    ),
    "the depth of all sentences is that of the first": (
        "steps of beam search with their candidates",
        {"beam.cu": (f"{DEPTH}p.depths[row];\n    return p.prefix", f"{DEPTH}p.depths[0];\n    return p.prefix")},
    ),
    "the unknown word has no penalty in a beam": (
        "steps of beam search",
        {"beam.cu": ("if (token == p.unk) x[i] -= (float)p.unk_penalty;", "")},
    ),
    "the unknown word has no penalty": (
        "accepting and committing",
        {"vocabulary.cu": ("const float penalty = (float)p.unk_penalty;", "const float penalty = 0;")},
    ),
    "tokens of a beam have 18 bits": (
        "likeliest tokens",
        {"beam.cu": ("~(unsigned)token;", "~((unsigned)token & 0x3ffff);")},
    ),
    "tokens have 18 bits": (
        "accepting and committing",
        {"vocabulary.cu": ("const int token = first + i;", "const int token = (first + i) & 0x3ffff;")},
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
# In fp32 a product has no tensor core and its sums are not rounded; fp16 is rounded by the GPU itself.
NOT_THERE = {
    ("two words of a weight change places", torch.float32),
    ("halves are rounded up", torch.float32),
    ("halves are rounded up", torch.float16),
}


def agrees(told: str, dtype: torch.dtype) -> bool:
    """Whether a probe finds nothing in a precision."""
    agree = doctor.GPU_KERNELS[told]
    precise = operators.PROBES[agree].precise
    only: dict[torch.dtype, int] = {dtype: PRECISIONS[dtype]}
    with mock.patch.object(operators, "PRECISIONS", PRECISIONS if precise else only):
        found: bool = agree(CPU, *([dtype] if precise else []))
    return found


@pytest.mark.parametrize("fault", MUTANTS)
@torch.inference_mode()
def test_faults_are_noticed_in_every_precision(fault: str) -> None:
    told, changes = MUTANTS[fault]
    with fused_kernels(Emulator(changes=changes)):
        missed = [
            dtype for dtype in PRECISIONS if (fault, dtype) not in NOT_THERE and agrees(told, dtype)
        ]
    assert missed == []


@torch.inference_mode()
def test_what_is_right_is_used() -> None:
    with fused_kernels(Emulator()):
        # In other precisions the unit tests try them, compiled as C++.
        assert all(agrees(told, torch.float16) for told in doctor.GPU_KERNELS)
