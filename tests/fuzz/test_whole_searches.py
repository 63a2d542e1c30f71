"""Searches of whole batches in the compiled library against other searches: cases without end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz import budget
from tests.unit import test_whole_searches as whole
from tests.unit.test_interleaved_step import interleaved_case

pytestmark, CASES = whole.pytestmark, [*whole.CASES, interleaved_case]


@pytest.mark.parametrize("case", CASES)
def test_whole_searches(case: Any) -> None:
    for seed in budget.seeds(1 / len(CASES)):
        try:
            case(seed)
        except AssertionError as error:
            name = f"tests/fuzz/test_whole_searches.py::test_whole_searches[{case.__name__}]"
            raise AssertionError(budget.again(name, seed)) from error
