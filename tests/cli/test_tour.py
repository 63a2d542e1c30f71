"""docs/tour.md: its commands, run in turn, print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.commands import ROOT
from tests.cli.test_readme import run

PAGE = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```", re.DOTALL
)


def without_times(text: str) -> list[list[str]]:
    """Words by line; numbers with a point, which differ from run to run, all alike."""
    return [re.sub(r"\d+\.\d+", "0.0", line).split() for line in text.strip().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    (tmp_path / "work" / "tour").mkdir(parents=True)
    return tmp_path


def test_the_page_prints_what_it_says(folder: Path) -> None:
    printed, compared = "", 0
    for block in BLOCK.finditer(PAGE):
        mark, language, code = block["mark"] or "", block["language"], block["code"]
        if mark.startswith("not run here: "):
            continue
        if language != "text":
            printed = run(language, code, folder)
        elif mark.startswith("the times are "):
            assert without_times(printed) == without_times(code)
        else:
            assert [line.rstrip() for line in printed.splitlines()] == code.splitlines()
            compared += 1
    assert compared >= 7
    assert {path.name for path in folder.iterdir()} == {"checkpoints", "work"}
