"""The fused kernels of a GPU, compiled as C++ and in the emulator, with random sentences, rules, drafts and texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from tests.emulated.comparing import COMPARED
from tests.emulated.emulator import RANDOM, Emulator
from tests.fuzz import budget
from tests.strict.device.bookkeeping import Form, fused_kernels, in_one_thread

COMPARISONS = [*itertools.chain(*COMPARED.values())]
FORMS: dict[str, Callable[[], Form]] = {
    "one thread": lambda: in_one_thread,
    "emulated": lambda: Emulator(RANDOM),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compare", COMPARISONS)
def test_random_cases(compare: Callable[[int], None], form: str) -> None:
    with fused_kernels(FORMS[form]()), torch.inference_mode():
        for seed in budget.seeds(1 / len(COMPARISONS) / len(FORMS)):
            try:
                compare(seed)
            except Exception as error:
                name = f"{compare.__name__}-{form}]'"
                test = f"'tests/fuzz/test_gpu_kernels.py::test_random_cases[{name}"
                raise AssertionError(budget.again(test, seed)) from error
