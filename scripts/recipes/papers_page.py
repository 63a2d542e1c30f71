"""docs/papers.md from papers_page.md: every number of ours is read from the result file that its row links to.

    python -m scripts.recipes.papers_page > docs/papers.md

A number is a reference in braces, ``{LINK; ROW; COLUMN}``; the page shows the cell as the file has it.

- LINK is the text of a link in the same line, to a page of docs/results, with or without ``#section``.
  ``LINK@TITLE`` names the tables below the bold line that begins with TITLE. The first table with the row counts.
- ROW is the first cell of a row. ``A + B`` are its first cells; ``*`` stands for any.
- COLUMN is a heading. ``COLUMN #2`` is the second number of the cell.

Of a JSON file ``{LINK; median}`` is the median speed-up of single sentences, with two decimals. ``{LINK; median; LOW to
HIGH}`` is that of the sentences with such an edit ratio, and ``{LINK; count; LOW to HIGH}`` is their number.

``{commits}`` are the commits that the result pages of the line name.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TEMPLATE = Path(__file__).with_suffix(".md")
REFERENCE = re.compile(r"\{([^{};]+);([^{}]+)\}")
LINK = re.compile(r"\[([^]]+)\]\((results/[^)\s]+)\)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
COMMIT = re.compile(r"\bcommit ([0-9a-f]{7,40})\b( with changes)?")

Table = tuple[list[str], list[list[str]]]


class UnknownReferenceError(ValueError):
    """A reference names nothing, or more than one thing."""


def cells(line: str) -> list[str]:
    """Of a row of a table in Markdown; ``\\|`` is no border."""
    parts = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    return [part.strip().replace("\\|", "|") for part in parts]


@cache
def section(target: str) -> str:
    """The text of a result page, or of its section."""
    name, _, anchor = target.partition("#")
    text = (DOCS / name).read_text(encoding="utf-8")
    if not anchor:
        return text
    sections = {
        part.split("\n")[0].strip().replace(" ", "-").replace(",", ""): part
        for part in re.split(r"^## ", text, flags=re.M)
    }
    if anchor not in sections:
        raise UnknownReferenceError(f"{target}: there is no such section")
    return sections[anchor]


def commits(targets: Iterable[str]) -> str:
    """Commits that result pages name, a section or else the head of its file; ``*``: with changes of its own."""
    found = dict[str, None]()
    for target in targets:
        name = target.partition("#")[0]
        if not name.endswith(".md"):
            continue
        head = re.split(r"^## ", section(name), maxsplit=1, flags=re.M)[0]
        named = COMMIT.search(section(target)) or COMMIT.search(head)
        found[named[1] + ("*" if named[2] else "") if named else "not named"] = None
    return ", ".join(found or ["not named"])


@cache
def tables(target: str) -> tuple[tuple[str, Table], ...]:
    """Titles and tables of a section of a result page.

    Args:
        target: file below docs, with ``#section`` or not.
    """
    text = section(target)
    found: list[tuple[str, Table]] = []
    title, rows = "", list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append(cells(line))
        elif rows:
            found.append((title, (rows[0], rows[2:])))
            rows = []
        if line.startswith("**"):
            title = line.strip("*")
    return tuple(found)


def only(found: Sequence[str], reference: str) -> str:
    if len(set(found)) != 1:
        raise UnknownReferenceError(f"{{{reference}}}: {len(found)} cells of this name")
    return found[0]


def looked_up(target: str, title: str, row: str, column: str, reference: str) -> str:
    """The cell of a table."""
    column, _, place = column.partition(" #")
    keys = row.split(" + ")
    found = []
    chosen = [table for heading, table in tables(target) if heading.startswith(title)]
    # Without a title the first table that has the row and the column counts.
    for header, rows in chosen:
        matching = [
            one
            for one in rows
            if all(key in ("*", cell) for key, cell in zip(keys, one, strict=False))
        ]
        if column in header:
            found = [one[header.index(column)] for one in matching]
        if found:
            break
    cell = only(found, reference)
    if not place:
        return cell
    return NUMBER.findall(cell)[int(place) - 1]


def of_sentences(target: str, what: str, between: str, reference: str) -> str:
    """Median speed-up, or number, of the sentences of a JSON file with an edit ratio in a range."""
    record = json.loads((DOCS / target).read_text(encoding="utf-8"))["distribution"]
    speedups = record["speedups"]
    if between:
        low, high = map(float, between.split(" to "))
        pairs = zip(speedups, record["edit_ratios"], strict=True)
        speedups = [speedup for speedup, ratio in pairs if low <= ratio <= high]
    if what == "count":
        return str(len(speedups))
    if what != "median" or not speedups:
        raise UnknownReferenceError(
            f"{{{reference}}}: give median or count, of sentences that are there"
        )
    return f"{statistics.median(speedups):.2f}"


def resolve(reference: str, links: dict[str, str]) -> str:
    """What a reference stands for."""
    parts = [part.strip() for part in reference.split(";")]
    name, _, title = parts[0].partition("@")
    if name not in links:
        raise UnknownReferenceError(f"{{{reference}}}: the line has no link [{name}]")
    if parts[1] in ("median", "count"):
        return of_sentences(links[name], parts[1], "".join(parts[2:]), reference)
    if len(parts) != 3:
        raise UnknownReferenceError(f"{{{reference}}}: give LINK; ROW; COLUMN")
    return looked_up(links[name], title, parts[1], parts[2], reference)


def render(text: str) -> str:
    """The page of a template."""
    lines = []
    for line in text.splitlines():
        links = dict(LINK.findall(line))
        named = line.replace("{commits}", commits(links.values())) if "{commits}" in line else line
        lines.append(
            REFERENCE.sub(lambda found, links=links: resolve(found[0][1:-1], links), named)
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(TEMPLATE.read_text(encoding="utf-8")), end="")
