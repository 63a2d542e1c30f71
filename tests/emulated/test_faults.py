"""Faults that are put into the kernels are found in the emulator: no barrier is there for nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
import torch

from fairseq_aggdec.kernels.gpu import nvrtc
from tests.emulated.comparing import COMPARED
from tests.emulated.emulator import BACKWARD, FORWARD, RANDOM, Changes, Emulator
from tests.strict.device.bookkeeping import COMPILER, fused_kernels

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")

SEEDS = 20
BARRIER = re.compile(r"(__syncthreads\(\)|warp_meets\(\));\n")
OF_SHARED = "bookkeeping"  # the source with which what all include is tried
# Left out: what shows only where the caller forces </s> or where n-grams repeat, which random cases hardly ever have.
RARE = "const int best = ranked[0];", "ranked[i] = best;", "same[i] = alike;\n        }"


def barriers() -> Iterator[tuple[str, Changes]]:
    """Name of a source, and the change that takes out one of its barriers."""
    for path in sorted(nvrtc.SOURCES.iterdir()):
        text = path.read_text(encoding="utf-8")
        for found in BARRIER.finditer(text):
            before, behind = text[: found.start()], text[found.end() :]
            if not before.rstrip().endswith(RARE):
                yield (
                    f"{path.name}:{before.count(chr(10)) + 1}",
                    {path.name: (text, before + behind)},
                )


MUTANTS: dict[str, Changes] = {
    **dict(barriers()),
    "half of the lanes are joined": {"shared.h": ("bits = LANES / 2;", "bits = LANES / 4;")},
    "a warp is forgotten": {"shared.h": ("unsigned warp = 1;", "unsigned warp = 2;")},
    "no thread leads where the first does not": {
        "beam.cu": ("return __syncthreads_or(mine);", "return mine;")
    },
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
}


@pytest.mark.parametrize("fault", MUTANTS)
def test_faults_are_found(fault: str) -> None:
    (name, _), *_ = MUTANTS[fault].items()
    source = OF_SHARED if name == nvrtc.SHARED else name.removesuffix(".cu")
    assert any(differs(source, MUTANTS[fault], order) for order in (RANDOM, BACKWARD, FORWARD))


def differs(source: str, changes: Changes, order: int) -> bool:
    emulator = Emulator(order, changes=changes)
    with fused_kernels(emulator), torch.inference_mode():
        for seed in range(SEEDS):
            for compare in COMPARED[source]:
                try:
                    compare(seed)
                except (AssertionError, RuntimeError):
                    return True
    return False
