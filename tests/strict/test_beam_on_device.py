"""Beam search that a GPU does alone, on a card or the strict device: stock's n-best list, and nothing that waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.strict.device import cases as device_cases
from tests.strict.device.cases import Case
from tests.strict.test_methods import SIZES, assert_equal


def decoded(case: Case, samples: list[Any], gpu: torch.device, folder: Path) -> Any:
    models, drafter = device_cases.random_models(case, SIZES)
    ready = device_cases.prepared(case, models, drafter, folder, gpu)
    wanted = device_cases.expected(case, models, drafter, folder, samples)
    for sample, reference in zip(samples, wanted, strict=True):
        assert_equal(ready.decode(sample, device_cases.prefix_of(case, len(sample["id"]))), reference, gpu)
        assert ready.generator.device_loop is not None and not ready.generator.searches
    return ready


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_beams(beam: int, gpu: torch.device, tmp_path: Path) -> None:
    case = Case("beam", "beam", generation={"beam": beam})
    decoded(case, [device_cases.batch(seed, rows) for seed, rows in ((1, 1), (2, 4), (3, 4))], gpu, tmp_path)
