"""docs/papers.md: a line for every table and figure, links that lead somewhere, numbers that are those of the files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.recipes import papers_page
from scripts.recipes.papers_page import DOCS, REFERENCE, TEMPLATE, UnknownReferenceError

SOURCE = TEMPLATE.read_text(encoding="utf-8")
PAGE = (DOCS / "papers.md").read_text(encoding="utf-8")
TARGET = re.compile(r"\]\(([^)\s#]+)")
REASON = re.compile(r"none: \w[^|]{9,}")
LONGEST = 120  # characters of a line outside tables
COLUMNS = 8
KINDS = re.compile(r"\b(trained|grown|replayed|random weights|no model)\b")
# What the papers number, but for what they only number: tables, figures.
NUMBERED = {
    "Aggressive decoding": (17, 8),
    "Blockwise parallel decoding": (4, 4),
    "Sequence to lattice": (9, 4),
    "Interleaved decoding": (6, 5),
}
# Numbers that say what was measured, not what came out.
SETTINGS = re.compile(
    r"\(\d+(?:, \d+(?:\.\d+)?)?\)"  # (3, 1.0): beta and tau; (2, 1): directions and words; (5): another k
    r"|\b[kNc] = \d+(?:, \d+)*|\bbeam \d|\b(?:beta|tau) \d(?: to \d)?|\btop-\d|\bminimum of \d"
    r"|\bbatch(?:es of)? \d+(?:, \d+)*(?: and \d+)?|\bat 32\b|\(8 and 32\b|\b\d threads?"
    r"|\b(?:fp16|fp32|bf16|H200|F0\.5|ROUGE-1|Table \d)|\bratio of 0\.2\b|\b\d+ to \d+(?: words| tokens|$)"
)
IN_PROSE = {"0.8", "1.0", "3.0", "0.6", "0.1", "0.3"}  # settings of training and of GAD++


def sections(text: str) -> dict[str, list[list[str]]]:
    """Cells of the rows of the table of each paper."""
    found = {}
    for section in text.split("\n## ")[1:]:
        rows = [line for line in section.splitlines() if line.startswith("|")][2:]
        if rows:
            found[section.partition(" (")[0]] = [papers_page.cells(row) for row in rows]
    return found


ROWS = [(paper, *cells) for paper, rows in sections(PAGE).items() for cells in rows]
NAMES = [f"{paper}: {name}" for paper, name, *_ in ROWS]
WRITTEN = [(paper, *cells) for paper, rows in sections(SOURCE).items() for cells in rows]


def covered(rows: list[list[str]], kind: str) -> list[int]:
    """Numbers of the tables, or figures, that the first cells name: ``Table 1 and its plot``, ``Figures 1 to 3``."""
    numbers: list[int] = []
    for name, *_ in rows:
        for first, last in re.findall(rf"^{kind}s? (\d+)(?: to (\d+))?", name):
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def test_every_table_and_figure_has_one_line() -> None:
    found = sections(PAGE)
    assert list(found) == list(NUMBERED)
    for paper, (tables, figures) in NUMBERED.items():
        assert covered(found[paper], "Table") == list(range(1, tables + 1)), paper
        assert covered(found[paper], "Figure") == list(range(1, figures + 1)), paper


@pytest.mark.parametrize("link", sorted(set(TARGET.findall(PAGE))))
def test_links_exist(link: str) -> None:
    assert (DOCS / link).is_file()


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_row_has_a_verdict_and_what_it_rests_on(row: tuple[str, ...]) -> None:
    assert len(row) == 1 + COLUMNS
    _, name, shown, ours, size, baseline, command, commit, file = row
    assert name and shown
    if "](results/" not in file:
        assert REASON.match(ours) and not file and not commit
        return
    assert re.fullmatch(
        r"(?:not named|[0-9a-f]{7,8}\*?)(?:, (?:not named|[0-9a-f]{7,8}\*?))*", commit
    )
    assert re.match(r"(yes|partly|no|not comparable|none)\b", ours), ours
    assert size and command and (baseline or ours.startswith("none"))
    assert KINDS.search(size), f"{size}: which kind of model is it?"


def test_the_page_is_what_the_files_say() -> None:
    """Every reference is looked up anew: a number that a file has no more, or has otherwise, is seen."""
    assert papers_page.render(SOURCE) == PAGE


@pytest.mark.parametrize("row", WRITTEN, ids=NAMES)
def test_no_result_is_typed_in(row: tuple[str, ...]) -> None:
    typed = REFERENCE.sub("", re.sub(r"`[^`]*`|\]\([^)]*\)", "", row[3]))
    assert re.findall(r"\d[\d.]*", SETTINGS.sub("", typed)) == []


def test_prose_quotes_no_results() -> None:
    lines = [line for line in PAGE.splitlines() if not line.startswith("|")]
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", "\n".join(lines))
    assert set(re.findall(r"\d+\.\d+", text)) <= IN_PROSE
    assert [line for line in lines if len(line) > LONGEST] == []


RESULT = """# A result

Python 3.11; commit 1234567

## one

**batch 1, 1 thread**

| system | BLEU | x ours, greedy |
|---|---|---|
| GAD | 36.96 / 1.50 (2) | 0.80 |

**batch 8, 1 thread**

| system | BLEU | x ours, greedy |
|---|---|---|
| GAD | 36.97 | 0.70 |
| twice | 1.00 | 1.00 |
| twice | 2.00 | 2.00 |
"""


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "quoted.md").write_text(RESULT)
    monkeypatch.setattr(papers_page, "DOCS", tmp_path)
    link = "[table](results/quoted.md#one)"

    def shown(reference: str) -> str:
        return papers_page.render(f"{reference} {link}").removesuffix(f" {link}\n")

    assert shown("{table; GAD; x ours, greedy}") == "0.80"
    assert shown("{table@batch 8,; GAD; BLEU}") == "36.97"
    assert shown("{table; GAD; BLEU #2}") == "1.50"
    assert shown("{table@batch 8,; twice + 2.00; x ours, greedy}") == "2.00"
    (tmp_path / "results" / "own.md").write_text("## two\n\ncommit 89abcdef with changes\n")
    two = f"{{commits}} {link} [own](results/own.md#two) [plot](results/plot.svg)"
    assert papers_page.render(two).startswith("1234567, 89abcdef* [table]")
    assert papers_page.render("{commits} [plot](results/plot.svg)").startswith("not named ")
    for wrong in (
        "{other; GAD; BLEU}",
        "{table; GAD}",
        "{table; NAT; BLEU}",
        "{table; GAD; F0.5}",
        "{table@batch 8,; twice; BLEU}",
        "{table@batch 2,; GAD; BLEU}",
    ):
        with pytest.raises(UnknownReferenceError):
            shown(wrong)
