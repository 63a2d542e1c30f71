"""Faults that are put into the kernels are found in the emulator: no barrier is there for nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fairseq_aggdec.kernels.gpu import nvrtc
from tests.emulated.comparing import COMPARED
from tests.emulated.emulator import BACKWARD, FORWARD, RANDOM, Barrier, Changes, Emulator
from tests.strict.device.bookkeeping import COMPILER, fused_kernels
from tests.unit.test_gpu_attention import compare_far_rows

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")

SEEDS = 20
BARRIER = re.compile(r"(__syncthreads\(\)|__syncthreads_or\(mine\)|warp_meets\(\));\n")
OF_SHARED = "bookkeeping"  # the source with which what all include is tried
# Left out: what shows only where the caller forces </s> or where n-grams repeat, which random cases hardly ever have.
RARE = "const int best = ranked[0];", "ranked[i] = best;", "same[i] = alike;\n        }"


def barriers() -> Iterator[Barrier]:
    """The barriers of the sources."""
    for path in sorted(nvrtc.SOURCES.iterdir()):
        text = path.read_text(encoding="utf-8")
        for found in BARRIER.finditer(text):
            before = text[: found.start()]
            if not before.rstrip().endswith(RARE):
                yield path.name, before.count("\n") + 1


FAR = "rows of a cache are counted with 31 bits"
MUTANTS: dict[str, Changes] = {
    "half of the lanes are joined": {"shared.h": ("bits = LANES / 2;", "bits = LANES / 4;")},
    "a warp is forgotten": {"shared.h": ("unsigned warp = 1;", "unsigned warp = 2;")},
    "two registers of a tensor core change places": {
        "products.cu": (
            "inputs[held][i % 2].words[word + i / 2]",
            "inputs[held][i / 2].words[word + i % 2]",
        )
    },
    "a lane writes its neighbour's sums": {
        "products.cu": ("* TILE_OUTPUTS + 2 * t + i % 2;", "* TILE_OUTPUTS + 2 * t + 1 - i % 2;")
    },
    "a group of lanes is not added": {
        "attention.cu": ("int bits = 1; bits < group;", "int bits = 2; bits < group;")
    },
    "groups of a warp are not joined": {"attention.cu": ("tile.join_groups();", "")},
    FAR: {
        "attention.cu": ("p.kept + row * p.row_step", "p.kept + (row * p.row_step & 0x7fffffff)")
    },
}


@pytest.mark.parametrize("fault", MUTANTS)
def test_faults_are_found(fault: str) -> None:
    (name,) = MUTANTS[fault]
    if fault == FAR:
        emulator = Emulator(changes=MUTANTS[fault])
        with fused_kernels(emulator), torch.inference_mode(), pytest.raises(AssertionError):
            compare_far_rows()
        return
    assert any(
        differs(name, order, changes=MUTANTS[fault]) for order in (RANDOM, BACKWARD, FORWARD)
    )


@pytest.mark.parametrize("barrier", [*barriers()], ids=lambda one: "{}:{}".format(*one))
def test_no_barrier_is_there_for_nothing(barrier: Barrier) -> None:
    orders = RANDOM, BACKWARD, FORWARD
    assert any(differs(barrier[0], order, without=barrier) for order in orders)


def differs(file: str, order: int, **fault: Any) -> bool:
    source = OF_SHARED if file == nvrtc.SHARED else file.removesuffix(".cu")
    emulator = Emulator(order, **fault)
    with fused_kernels(emulator), torch.inference_mode():
        for seed in range(SEEDS):
            for compare in COMPARED[source]:
                try:
                    compare(seed)
                except (AssertionError, RuntimeError):
                    return True
    return False
