"""Attention to a source with its queries in one launch, compiled as C++, against the two launches that it replaces."""

from __future__ import annotations

import random

import pytest
import torch

from fairseq_aggdec.kernels.gpu import cross
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS
from fairseq_aggdec.kernels.switches import VARIABLE

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def compare_cross_attention(seed: int, device: torch.device = CPU) -> None:
    """Random slots over random sources: the same bits."""
    chance = random.Random(seed)
    dtype, rows, width = chance.choice([*PRECISIONS]), chance.randint(1, 4), chance.randint(1, 5)
    heads, size = chance.choice(((1, 8), (3, 40), (2, 64), (1, 128), (2, 128)))
    given = rows, width, heads, size, chance.randint(1, 70), chance.random() < 0.7, seed
    assert cross.cross_alike(dtype, device, *given), (seed, dtype, given)


@pytest.mark.parametrize("name", ["cross_attend", "product", "attend"])
def test_it_runs_where_all_run_whose_work_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cross.crosses(CPU, torch.float16)
    monkeypatch.setenv(VARIABLE, f"no-{name}")
    assert not cross.crosses(CPU, torch.float16)
