"""The fused kernels of a GPU, compiled as C++ and in the emulator, with random sentences, rules, drafts and texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.emulated.emulator import RANDOM, Emulator
from tests.fuzz import budget
from tests.strict.device.bookkeeping import Form, fused_kernels, in_one_thread
from tests.unit.test_beam_board import compare_candidates
from tests.unit.test_drafting_kernels import compare_chains, compare_embeddings
from tests.unit.test_gpu_attention import compare_attention
from tests.unit.test_gpu_kernels import (
    compare_an_iteration,
    compare_copies,
    compare_largest,
    compare_slot_windows,
)
from tests.unit.test_gpu_products import compare_products

COMPARED = [
    *(compare_an_iteration, compare_copies, compare_slot_windows, compare_attention),
    *(compare_candidates, compare_largest, compare_products, compare_embeddings, compare_chains),
]


FORMS: dict[str, Callable[[], Form]] = {
    "one thread": lambda: in_one_thread,
    "emulated": lambda: Emulator(RANDOM),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compare", COMPARED)
def test_random_cases(compare: Callable[[int], None], form: str) -> None:
    with fused_kernels(FORMS[form]()), torch.inference_mode():
        for seed in budget.seeds(1 / len(COMPARED) / len(FORMS)):
            try:
                compare(seed)
            except Exception as error:
                name = f"{compare.__name__}-{form}]'"
                test = f"'tests/fuzz/test_gpu_kernels.py::test_random_cases[{name}"
                raise AssertionError(budget.again(test, seed)) from error
