"""The code of docs/extending.md is run as it is printed: the drafter and the rule of the page, and their tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PRINTED: dict[str, Any] = {}
for block in BLOCKS:
    exec(compile(block, str(PAGE), "exec"), PRINTED)
TESTS = [name for name in PRINTED if name.startswith("test_")]


def test_there_is_a_test_of_each_kind() -> None:
    assert len(TESTS) == 5


@pytest.mark.parametrize("name", TESTS)
def test_printed(name: str) -> None:
    PRINTED[name]()
