"""docs/papers.md: links that lead somewhere, a result or a reason in every row, numbers that the files have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "papers.md").read_text(encoding="utf-8")
TARGET = re.compile(r"\]\(([^)\s#]+)")
REASON = re.compile(r"\bnone[:,] \w[^|]{9,}")
LONGEST = 120  # characters of a line outside tables
TEXT = {".md", ".json", ".svg", ".html"}
# What the papers number, but for what they only number: tables, figures.
NUMBERED = {
    "Aggressive decoding": (17, 8),
    "Blockwise parallel decoding": (4, 4),
    "Sequence to lattice": (9, 4),
    "Interleaved decoding": (6, 5),
}


def sections() -> dict[str, list[list[str]]]:
    """Cells of the rows of the table of each paper."""
    found = {}
    for section in PAGE.split("\n## ")[1:]:
        rows = [line for line in section.splitlines() if line.startswith("|")][2:]
        if rows:
            cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
            found[section.partition(" (")[0]] = cells
    return found


ROWS = [(paper, *cells) for paper, rows in sections().items() for cells in rows]
NAMES = [f"{paper}: {name}" for paper, name, *_ in ROWS]


def covered(rows: list[list[str]], kind: str) -> set[int]:
    """Numbers of the tables, or figures, that the first cells name: ``Table 1 and its plot``, ``Figures 1 to 3``."""
    numbers: set[int] = set()
    for name, *_ in rows:
        for first, last in re.findall(rf"{kind}s? (\d+)(?: to (\d+))?", name):
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def test_every_table_and_figure_has_a_row() -> None:
    found = sections()
    assert list(found) == list(NUMBERED)
    for paper, (tables, figures) in NUMBERED.items():
        assert covered(found[paper], "Table") == set(range(1, tables + 1)), paper
        assert covered(found[paper], "Figure") == set(range(1, figures + 1)), paper


@pytest.mark.parametrize("link", sorted(set(TARGET.findall(PAGE))))
def test_links_exist(link: str) -> None:
    assert (DOCS / link).is_file()


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_row_has_a_result_or_a_reason(row: tuple[str, ...]) -> None:
    assert len(row) == 6
    result = row[3]
    assert "](results/" in result or REASON.search(result), result
    if "](results/" in result:
        assert re.match(r"(yes|partly|no|not)\b", row[5]), row[5]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_numbers_are_those_of_the_files(row: tuple[str, ...]) -> None:
    files = [DOCS / link for link in TARGET.findall(row[3])]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.suffix in TEXT)
    claimed = re.findall(r"\d+\.\d+", re.sub(r"\([^)]*, [\d.]+\)", "", row[5]))
    written = set(re.findall(r"\d+\.\d+", text))
    for number in claimed:
        digits = len(number.partition(".")[2])
        rounded = {f"{float(one):.{digits}f}" for one in written}
        assert number in rounded or re.search(rf"(?<![\d.]){number}", text), number


def test_lines_are_short() -> None:
    lines = [line for line in PAGE.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > LONGEST] == []
