"""Numbers of tables of the pages are, by row and column, those of a result file that the page links to.

A row of a page is about one system. Its numbers with a decimal point must be in rows of one name in the files, each in
a table of the batch size that its column names, and in a column of its unit. Where a cell has several numbers (fp32 / 8
bits, milliseconds (speed-up)), the first ones of all cells are one system, the second ones another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.recipes.papers_page import cells, tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    *("aggressive", "beam", "blockwise", "gad", "gpu", "int8", "interleaved"),
    *("lattice", "methods", "performance", "results", "rivals", "trees"),
)
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")
UNITS = (("BLEU", r"BLEU"), ("F0.5", r"F0\.5"), ("ms", r"\bms\b|[Mm]illiseconds"))
# Rows about several systems, or about the difference of two: page, first cell, second cell; the systems of the numbers.
SEVERAL = {
    ("gad", "three layers", "34.89"): ["exact", "top-beta (3,1.0)", "top-beta (3,1.0)"],
    ("gad", "one layer, another verifier", "29.64"): [
        *["ours, greedy", "GAD++ (3, 1.0), a chain", "GAD++ (3, 1.0), trees of 5"]
    ],
    ("int8", "UA-GEC, F0.5", "beam 5"): ["beam5", "beam5-int8"],
    ("int8", "", "`iad`"): ["iad", "iad-int8"],
    ("int8", "Multi30k de-en, BLEU", "beam 5"): ["ours, beam 5", "ours, beam 5, int8"],
    ("int8", "", "`greedy`"): ["ours, greedy", "ours, greedy, int8"],
    ("performance", "drafts: `iad`; for translation `gad`, trained", "7.8"): [
        *["ours, IAD", "ours, IAD", "ours, GAD", "ours, GAD"]
    ],
    ("performance", "8 bits: the same with `--int8`", "3.6"): [
        *["ours, IAD, --int8", "ours, IAD, --int8", "ours, GAD, --int8", "ours, GAD, --int8"]
    ],
}
# BLEU below stock's: the number, and of which rows of which table it is the difference.
INTERLEAVED = "results/interleaved.md#interleaved-multi30k", "fairseq beam 4"
HARDLY_TRAINED = "results/interleaved.md#interleaved-multi30k-avx2", "fairseq beam 4"
LATTICE = "results/lattice.md#lattice-batch32-multi30k", "fairseq beam 5"
IB, SCORER = "interleaved-2x1-distilled-3, beam 4", "distilled data, 1 layers, N = 64"
DIFFERENCES = {
    ("methods", "`interleaved`", "translation"): ("5.0", *HARDLY_TRAINED, IB),
    ("methods", "`lattice`", "translation"): ("3.8", *LATTICE, SCORER),
    ("results", "`interleaved` (2, 1), trained, beam 4, BLEU in fp32, 1,000 sentences"): (
        *("0.8", *INTERLEAVED, IB),
    ),
    ("results", "`lattice`, trained, 64 candidates, BLEU, 1,000 sentences"): (
        *("3.8", *LATTICE, SCORER),
    ),
}


class Cell(NamedTuple):
    """A number of a result file: the name of its row, its heading, and the batch size of its table if it has one."""

    name: str
    heading: str
    batch: str | None
    value: float


class Claim(NamedTuple):
    """A number of a page: as it is written, the batch size of its heading, a pattern of headings of its unit."""

    text: str
    batch: str | None
    unit: str | None

    def names(self, found: tuple[Cell, ...]) -> set[str]:
        """Names of the rows that have this number in the right place."""
        near = 0.5 * 10 ** -len(self.text.partition(".")[2]) + 1e-9
        return {
            cell.name
            for cell in found
            if abs(cell.value - float(self.text)) <= near
            and (None in (self.batch, cell.batch) or self.batch == cell.batch)
            and (self.unit is None or re.search(self.unit, cell.heading))
        }


def batch_of(text: str) -> str | None:
    found = re.search(r"batch(?:es of| size)? (\d+)", text)
    return found[1] if found else None


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))]


@cache
def recorded(page: str) -> tuple[Cell, ...]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    found = []
    for link in sorted(set(re.findall(r"\]\((results/[^)#\s]+\.md)", text))):
        for title, (heads, rows) in tables(link):
            for row in rows:
                named = dict(zip(heads, row, strict=False))
                name = named.get("system") or row[0]
                batch = named.get("batch") or named.get("batch size") or batch_of(title)
                # Some files have systems or batch sizes as headings, and the unit in the title.
                found += [
                    Cell(name, f"{head} {heads[0]} {title}", batch, value)
                    for head, cell in zip(heads, row, strict=False)
                    for value in numbers(cell)
                ]
    return tuple(found)


def page_tables(text: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Last paragraph before each table, headings, rows; links are replaced by their text."""
    rows, before = list[list[str]](), ""
    for line in [*text.splitlines(), ""]:
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line)
        if line.startswith("|"):
            if "(tuning)" not in line:
                rows.append(cells(plain))
        elif rows:
            yield before, rows[0], rows[2:]
            rows, before = [], ""
        elif line:
            before = f"{before} {plain}"
        if line.startswith("#"):
            before = ""


def claims(before: str, heads: list[str], row: list[str]) -> list[list[Claim]]:
    """Numbers of a row behind its first cell; those at the same place within their cells together."""
    places = list[list[Claim]]()
    for head, cell in zip(heads[1:], row[1:], strict=True):
        unit = next(
            (
                unit
                for where in (head, row[0], heads[0], before)
                for mark, unit in UNITS
                if re.search(unit, where)
            ),
            None,
        )
        written = re.sub(r"`[^`]*`", "", cell)
        for place, number in enumerate(NUMBER.finditer(written)):
            if place == len(places):
                places.append([])
            # In brackets is something else than what the heading says.
            bracketed = written[: number.start()].endswith("(")
            places[place].append(Claim(number[0], batch_of(head), None if bracketed else unit))
    return places


@pytest.mark.parametrize("page", PAGES)
def test_numbers_in_tables_are_those_of_files(page: str) -> None:
    text, seen, wrong = (DOCS / f"{page}.md").read_text(encoding="utf-8"), 0, []
    for before, heads, rows in page_tables(text):
        for row in rows:
            key = (page, row[0], row[1])
            difference = DIFFERENCES.get(key, DIFFERENCES.get(key[:2], ("",)))[0]
            for place in claims(before, heads, row):
                seen += len(place)
                place = [claim for claim in place if claim.text != difference]
                names = [claim.names(recorded(page)) for claim in place]
                if key in SEVERAL:
                    fits = all(name in one for name, one in zip(SEVERAL[key], names, strict=True))
                else:
                    fits = not names or bool(set.intersection(*names))
                if not fits:
                    wrong.append((row, [claim.text for claim in place]))
    assert seen and wrong == []


def test_a_number_in_the_wrong_place_is_seen() -> None:
    """Not only in the wrong row of one batch size, but in the column of another batch size, or of another unit."""
    found = (
        Cell("ours", "ms / sentence", "1", 2.5),
        Cell("ours", "ms / sentence", "8", 1.5),
        Cell("ours", "BLEU", "1", 3.5),
        Cell("theirs", "ms / sentence", "8", 4.5),
    )
    assert Claim("2.5", "1", r"\bms\b").names(found) == {"ours"}
    assert Claim("2.5", "8", r"\bms\b").names(found) == set()
    assert Claim("3.5", "1", r"\bms\b").names(found) == set()
    assert Claim("4.5", "8", r"\bms\b").names(found) == {"theirs"}


@pytest.mark.parametrize("key", DIFFERENCES)
def test_differences_are_those_of_two_rows(key: tuple[str, ...]) -> None:
    number, target, *names = DIFFERENCES[key]
    scores = [
        next(
            float(row[heads.index("BLEU")])
            for _, (heads, rows) in tables(target)
            for row in rows
            if row[0] == name
        )
        for name in names
    ]
    assert scores[0] - scores[1] == pytest.approx(float(number), abs=0.051)
