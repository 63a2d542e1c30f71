"""Every number with a decimal point in the tables of the pages is in a result file that the page links to."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    *("aggressive", "beam", "blockwise", "gad", "gpu", "int8", "interleaved"),
    *("lattice", "methods", "performance", "results", "rivals", "trees"),
)
NUMBER = r"(?<![\w.])\d+\.\d+(?![\w.])"


def leaves(value: Any) -> list[float]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [leaf for one in inner for leaf in leaves(one)]
    return [float(value)] if isinstance(value, int | float) else []


@cache
def numbers(file: Path) -> tuple[float, ...]:
    """Of a result file and of the JSON beside it, as they are and as percentages of one."""
    found = [float(one) for one in re.findall(r"\d+(?:\.\d+)?", file.read_text(encoding="utf-8"))]
    beside = file.with_suffix(".json")
    if beside.exists():
        found += leaves(json.loads(beside.read_text(encoding="utf-8")))
    return (*found, *(100 * one for one in found))


@pytest.mark.parametrize("page", PAGES)
def test_numbers_in_tables_are_those_of_files(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    links = set(re.findall(r"\]\((results/[^)#\s]+\.md)", text))
    written = [number for link in links for number in numbers(DOCS / link)]
    rows = [line for line in text.splitlines() if line.startswith("|") and "(tuning)" not in line]
    claimed = set(re.findall(NUMBER, re.sub(r"`[^`]*`|\]\([^)]*\)", "", "\n".join(rows))))
    assert claimed
    for number in claimed:
        digits = len(number.partition(".")[2])
        near = 0.5 * 10**-digits + 1e-9
        assert any(abs(one - float(number)) <= near for one in written), number
