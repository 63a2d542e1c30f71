"""No table of README, the pages and the result files has numbers that cannot be."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUALITY = ("BLEU", "F0.5")
NUMBER = r"-?\d+(?:\.\d+)?"
# Of tables of heads: sizes and times as percentages of the model's, which may be more than 100.
LAYOUTS = ("of the model", "parameters, of the model")


@dataclass
class Table:
    """Of a page: where its heading stands, headings and rows of cells, and the line before it (batch, threads)."""

    line: int
    before: str
    heads: list[str]
    rows: list[dict[str, str]]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def tables(text: str) -> Iterator[Table]:
    lines, before = text.splitlines(), ""
    for number, line in enumerate(lines):
        if line and not line.startswith("|"):
            before = line
        ruled = number + 1 < len(lines) and re.fullmatch(r"\|[-: |]+\|", lines[number + 1])
        if not (line.startswith("|") and ruled):
            continue
        heads, rows = cells(line), []
        for row in lines[number + 2 :]:
            if not row.startswith("|"):
                break
            rows.append(dict(zip(heads, cells(row), strict=False)))
        yield Table(number + 1, before, heads, rows)


def number(cell: str) -> float | None:
    """A cell that is one number, which may be bold and have a unit behind it."""
    found = re.fullmatch(rf"\**({NUMBER})\**(?: ?(?:ms|s|x|%))?\**", cell)
    return float(found[1]) if found else None


def near(cell: str) -> tuple[float, float]:
    """Of the numbers that are written like this one, the least and the largest."""
    found = re.search(NUMBER, cell)
    assert found is not None
    half = 0.5 * 10 ** -len(found[0].partition(".")[2]) + 1e-9
    return float(found[0]) - half, float(found[0]) + half


def percentages(table: Table) -> Iterator[str]:
    """Outside 0 to 100, or shares of one whole that add up to more; not those that compare with something smaller."""
    for row in table.rows:
        for head, cell in row.items():
            whole = head.endswith(", %")
            found = re.findall(rf"({NUMBER}) ?%", cell)
            if whole or "(%)" in head:
                found = re.findall(NUMBER, cell)
            if not {*LAYOUTS} & {*table.heads} and any(
                not 0 <= float(share) <= 100 for share in found
            ):
                yield f"{head}: {cell}"
            if whole and " / " in cell and sum(map(float, found)) > 100 + len(found) / 2:
                yield f"{head}: {cell} is more than the whole"


def percentiles(table: Table) -> Iterator[str]:
    for row in table.rows:
        middle, late = (number(row.get(head, "")) for head in ("p50 ms", "p95 ms"))
        if middle is not None and late is not None and middle > late:
            yield f"p50 {middle} > p95 {late}"


def rates(table: Table) -> Iterator[str]:
    """Milliseconds a sentence and sentences a second."""
    for row in table.rows:
        for one, per in (("ms / sentence", "sentences / s"), ("time (s)", "sentences/s")):
            time, rate = row.get(one, ""), row.get(per, "")
            total = 1000.0 if one.startswith("ms") else number(row.get("sentences", ""))
            if None in (number(time), number(rate), total):
                continue
            low, high = (a * b for a, b in zip(near(time), near(rate), strict=True))
            if not low <= total <= high:
                yield f"{time} and {rate} a second"


def plain(name: str) -> str:
    """A system by one name, however a page writes it."""
    name = re.sub(r"[`*,]|^ours?\b|\bstock\b", " ", name.replace("stock", "fairseq"))
    return " ".join(name.split())


def ratios(table: Table) -> Iterator[str]:
    """``x NAME`` is the time of the row NAME over that of the row: the last column of milliseconds before it."""
    if len({*table.heads}) < len(table.heads):
        return  # a table of several measurements
    time, keys = "", [head for head in table.heads if head in ("beam", "batch size", "batch")]
    for head in table.heads:
        if re.search(r"(?<!p50 )(?<!p95 )\bms( / sentence)?$", head):
            time = head
        if not (head.startswith("x ") and time):
            continue
        times = {
            (plain(row[table.heads[0]]), *(row[key] for key in keys)): row.get(time, "")
            for row in table.rows
        }
        for row in table.rows:
            name, own = plain(head[2:]), [row[key] for key in keys]
            # In a page, a row of another precision may stand beside the baseline of its own.
            precision = re.search(r" --(bf16|int8)$", plain(row[table.heads[0]]))
            base = times.get((name, *own), "")
            if precision and head.startswith("x our "):
                base = times.get((name + precision[0], *own), "")
            own, cell = row.get(time, ""), row.get(head, "")
            if None in (number(base), number(own), number(cell)):
                continue
            (fast, slow), (low, high) = near(own), near(base)
            if fast > 0 and not low / slow <= near(cell)[1] >= near(cell)[0] <= high / fast:
                yield f"{row[table.heads[0]]}: {cell} {head}, {base} against {own}"


def qualities(table: Table) -> Iterator[str]:
    """A row whose outputs are stock's has the quality of a row of stock with this beam."""
    differ = next((head for head in table.heads if head.startswith("differ")), "")
    for measure in {*QUALITY} & {*table.heads}:
        of_stock: defaultdict[str, set[str]] = defaultdict(set)
        for row in table.rows:
            if row[table.heads[0]].startswith("fairseq"):
                of_stock[beam(row[table.heads[0]])].add(row[measure])
        for row in table.rows:
            theirs = of_stock[beam(row[table.heads[0]])]
            same = re.match(r"0( of \d+)?$", row.get(differ, ""))
            if same and theirs and row[measure] not in theirs:
                yield f"{row[table.heads[0]]}: no output differs, {measure} {row[measure]} is not {sorted(theirs)}"


def beam(name: str) -> str:
    """Greedy search, whatever drafts for it, has 1."""
    found = re.search(r"beam (\d+)", name)
    return found[1] if found else "1"


CHECKS = (percentages, percentiles, rates, ratios, qualities)


def stock(some: Sequence[Table]) -> Iterator[str]:
    """Quality of stock is the same at every batch size of one run, but for ties that rounding decides."""
    runs: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for table in some:
        size = re.match(r"\*\*batch \d+, (.*)\*\*", table.before)
        for measure in {*QUALITY} & {*table.heads}:
            for row in table.rows:
                points = number(row[measure])
                if size and row[table.heads[0]].startswith("fairseq") and points is not None:
                    runs[size[1], measure, row[table.heads[0]]].append(points)
    for (_, measure, name), points in runs.items():
        if max(points) - min(points) > (1.0 if "bf16" in name else 0.3):
            yield f"{name}: {measure} {points}"


def impossible(text: str) -> list[str]:
    """What cannot be, with the line of its table; runs are told apart by the headings of the page."""
    found = []
    for part in re.split(r"(?m)^(?=#)", text):
        found += list(stock(list(tables(part))))
    for table in tables(text):
        found += [f"line {table.line}: {one}" for check in CHECKS for one in check(table)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_number_is_impossible(page: Path) -> None:
    assert impossible(page.read_text(encoding="utf-8")) == []


SPEED = "| system | BLEU | ms / sentence | p50 ms | p95 ms | sentences / s | x fairseq beam 5 | differ from stock |"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("| fairseq beam 5 | 35.93 | 96.6 | 90.6 | 151.1 | 10.4 | 1.00 | |", ""),
        ("| ours, beam 5 | 35.94 | 50.0 | 1 | 2 | 20.0 | 1.93 | 0 of 128 |", "no output differs"),
        ("| ours, beam 5 | 35.93 | 50.0 | 2 | 1 | 20.0 | 1.93 | 0 of 128 |", "p50 2.0 > p95"),
        ("| ours, beam 5 | 35.93 | 50.0 | 1 | 2 | 25.0 | 1.93 | 0 of 128 |", "25.0 a second"),
        ("| ours, beam 5 | 35.93 | 50.0 | 1 | 2 | 20.0 | 2.93 | 0 of 128 |", "2.93 x fairseq"),
        ("| ours, beam 5 | 101 % | 50.0 | 1 | 2 | 20.0 | 1.93 | 3 of 128 |", "BLEU: 101 %"),
    ],
)
def test_what_cannot_be_is_found(rows: str, words: str) -> None:
    stock = "| fairseq beam 5 | 35.93 | 96.6 | 90.6 | 151.1 | 10.4 | 1.00 | |"
    rule = "|---" * SPEED.count(" | ") + "|---|"
    found = impossible("\n".join(["**batch 8, 1 thread**", "", SPEED, rule, stock, rows]))
    assert len(found) == bool(words) and words in "".join(found)


def test_stock_does_not_change_with_the_batch() -> None:
    parts = [
        f"**batch {size}, 1 thread**\n\n| system | BLEU |\n|---|---|\n| fairseq beam 5 | {bleu} |\n"
        for size, bleu in ((8, 35.93), (32, 17.83))
    ]
    assert impossible("\n".join(parts)) == ["fairseq beam 5: BLEU [35.93, 17.83]"]
