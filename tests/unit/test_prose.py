"""README and the pages can be read: short sentences, short pages, no diary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
MEAN, LONGEST = 18, 40  # words of a sentence
LINES = 250
COLUMNS = 120
LONG = {"options.md", "papers.md"}  # tables of everything


def paragraphs(text: str) -> list[str]:
    """Running text and items of lists, without code, tables, headings and invisible comments."""
    text = re.sub(r"```.*?```|<!--.*?-->|^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^(?:#.*|\|.*|:::.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def sentences(text: str) -> list[list[str]]:
    """Words of each sentence; a link is its text, code in a line is one word."""
    found = []
    for paragraph in paragraphs(text):
        plain = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
        plain = re.sub(r"`[^`]*`", "CODE", plain).replace("*", "")
        parts = re.split(r"(?<=[.!?])[)\"”]?\s+(?=[\"“(]?[A-Z0-9`])|(?<=[.!?])$", plain)
        words = [re.findall(r"[^\s/()]*\w[^\s/()]*", part) for part in parts]
        found += [each for each in words if each]
    return found


def test_counting() -> None:
    text = "# A b c\n\nOne two `three four`. Five [six](x.md) 1.5 times.\n\n- seven\n- eight\n\n| a |\n"
    assert [len(words) for words in sentences(text)] == [3, 4, 1, 1]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_sentences_are_short(name: str) -> None:
    lengths = sentences(PAGES[name].read_text(encoding="utf-8"))
    too_long = [" ".join(words) for words in lengths if len(words) > LONGEST]
    assert too_long == []
    if lengths:
        assert sum(map(len, lengths)) / len(lengths) <= MEAN


@pytest.mark.parametrize("name", sorted(PAGES.keys() - LONG))
def test_pages_are_short(name: str) -> None:
    assert len(PAGES[name].read_text(encoding="utf-8").splitlines()) <= LINES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_lines_of_text_are_short(name: str) -> None:
    text = re.sub(r"```.*?```", "", PAGES[name].read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "!["))]
    assert [line for line in lines if len(line) > COLUMNS] == []
