"""Searches of whole batches in the compiled library against the Python searches: cases without end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz import budget
from tests.unit.test_whole_searches import CASES, pytestmark

__all__ = ["pytestmark"]


@pytest.mark.parametrize("case", CASES)
def test_whole_searches(case: Any) -> None:
    for seed in budget.seeds(1 / len(CASES)):
        try:
            case(seed)
        except AssertionError as error:
            name = f"tests/fuzz/test_whole_searches.py::test_whole_searches[{case.__name__}]"
            raise AssertionError(budget.again(name, seed)) from error
