"""Pages: what is in the HTML for readers, screen readers, telephones and dark rooms. In a browser: tests/cli."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fairseq.data import Dictionary

from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.bench.table import Line
from fairseq_aggdec.report import choosing, report, trace
from fairseq_aggdec.report.colours import COLOURS
from fairseq_aggdec.report.report import Page
from tests.unit.test_trace import RECORD, RELAXED_RECORD, WORDS

PARTS = {"encoder": 0.25, "drafter's encoder": 0.0, "draft": 0.0, "verify": 0.7, "other": 0.05}
TIMED = (
    Line("beam1", 1, 1, 12, 90, 0.96, 0.08, 0.1, None, {"beam1": 1.0}),
    Line("greedy", 1, 1, 12, 90, 0.48, 0.04, 0.05, 0, {"beam1": 2.0}, 1.0, parts=PARTS),
    Line("iad", 1, 1, 12, 90, 0.12, 0.01, 0.02, 1, {"beam1": 8.0}, 4.0, parts=PARTS),
)
VOID = {"meta", "link", "input", "br"}


class Reader(HTMLParser):
    """Elements of a page; stops at one that is closed wrongly."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def words() -> Dictionary:
    dictionary = Dictionary()
    for word in WORDS:
        dictionary.add_symbol(word)
    return dictionary


@pytest.fixture
def page(words: Dictionary, tmp_path: Path) -> str:
    """All that a page can have."""
    traces = [trace.trace(RECORD, words, words), trace.trace_beside(RELAXED_RECORD, words, words)]
    whole = Page("A <title>", "Words.", "12 sentences, batch size 1.", traces, timed=TIMED)
    whole.columns, whole.rows, whole.command = ["a", "b"], [["1", "2"]], "aggdec trace DATA"
    report.write(tmp_path / "page.html", whole)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_is_whole_and_needs_no_other_file(page: str) -> None:
    elements = Reader(page).found
    assert page.startswith("<!doctype html>")
    assert "<title>A &lt;title&gt;</title>" in page
    links = [str(at.get("src", at.get("href", ""))) for _, at in elements]
    assert {link[:1] for link in links if link and not link.startswith("data:")} <= {"#"}
    for said in ("12 sentences, batch size 1.", "Measured on ", "aggdec trace DATA"):
        assert said in page


def test_it_fits_narrow_screens_and_dark_rooms(page: str) -> None:
    elements = Reader(page).found
    metas = {at["name"]: at["content"] for tag, at in elements if tag == "meta" and "name" in at}
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    assert metas["color-scheme"] == "light dark"
    light, dark = re.findall(r":root \{ (.*?) color-scheme", page)
    for role, pair in COLOURS.items():
        assert f"--{role}: {pair[0]};" in light and f"--{role}: {pair[1]};" in dark
    # No colour stands outside the palette, and every table scrolls in a box of its own.
    style = (
        page[page.index("<style>") : page.index("</style>")].replace(light, "").replace(dark, "")
    )
    assert not re.findall(r"#[0-9a-f]{3,6}\b", style)
    assert len(re.findall(r"<table", page)) == len(
        re.findall(r'class="scroll"[^>]*>\s*<table', page)
    )


def test_kinds_differ_by_more_than_their_colour(page: str) -> None:
    """In elements, for screen readers, and in lines and weight for eyes."""
    assert '<del class="discarded"> sit &lt;here&gt;</del>' in page
    assert '<ins class="accepted"> the cat</ins><strong class="own">s</strong>' in page
    assert '<em class="relaxed"> cat</em>' in page
    looks = {}
    for names, look in re.findall(r"^  (\.[^{]*) \{([^}]*)\}", page, re.MULTILINE):
        for name in names.split(", "):
            looks[name[1:]] = tuple(
                part.strip() for part in look.split(";") if part.strip() and "color:" not in part
            )
    shapes = [looks[kind] for kind in ("accepted", "relaxed", "own", "discarded", "committed")]
    assert len(set(shapes)) == len(shapes)


def test_both_lines_of_a_drafter_are_shown(page: str) -> None:
    drafted = (
        '<b>D</b><span class="committed"> the cats</span><del class="discarded"> &lt;/s&gt;</del>'
    )
    assert f'<li>{drafted}<br><b>V</b><span class="committed">' in page


def test_speed_is_that_over_stock_and_time_by_part(page: str) -> None:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    assert [name for name, _ in rows] == [
        *("fairseq beam 1", "ours, greedy", "ours, IAD"),
        *("ours, greedy", "ours, IAD"),
    ]
    cells = [re.findall(r"<td>(.*?)</td>", row) for _, row in rows[:3]]
    assert cells == [["80.0", "", ""], ["40.0", "2.0", "yes"], ["10.0", "8.0", "no, 1 differ"]]
    widths = [re.findall(r"width: ([\d.]+)%", row) for _, row in rows]
    assert widths[:3] == [["100.0"], ["50.0"], ["12.5"]]
    assert widths[3:] == [["25.0", "70.0", "5.0"], ["6.2", "17.5", "1.2"]]
    assert "encoder 2.5, verify 7.0, other 0.5" in page
    assert "drafter" not in page.replace("drafted", "")  # what takes no time is not in the legend


def test_what_a_page_does_not_have_is_left_out(tmp_path: Path) -> None:
    report.write(tmp_path / "page.html", Page("Title", "Words."))
    text = (tmp_path / "page.html").read_text()
    Reader(text)
    assert not re.findall(r"<h2|<table|<script", text)


def test_choice_is_of_middling_length_and_varied() -> None:
    records = [
        Record(n, [2], [Iteration([], [2], 0, [5] * length)] * rounds)
        for n, (length, rounds) in enumerate([(1, 1), (20, 1), (10, 2), (7, 3), (30, 9), (50, 1)])
    ]
    chosen = choosing.choose(records)
    assert len({record.sentence for record in chosen}) == len(chosen) > 0
    assert all(1 < len(record.output) < 270 for record in chosen)


def test_sentences_that_were_helped_are_chosen(words: Dictionary) -> None:
    """Input "the sit" and outputs "the cat" and "the"; references as people wrote them."""
    helped, harmed = (
        Record(number, [4, 7, 2], [Iteration([], [], 0, [*output, 2])])
        for number, output in enumerate(([4, 5], [4]))
    )
    worth = choosing.worth_showing(words, words, {0: ["the cat"], 1: ["the sit down"]})
    assert worth(helped) and not worth(harmed)
    both = choosing.worth_showing(words, words, {0: ["the cat", "the sit"]})
    assert not both(helped)  # it must be nearer to everybody's
    assert choosing.worth_showing(words, words, {})(harmed)
    unreadable = Record(0, [4, 2], [Iteration([], [], 0, [words.unk(), 2])])
    assert not choosing.worth_showing(words, words, {})(unreadable)
    assert choosing.choose([harmed, helped, harmed], 1, worth) == [helped]
    assert len(choosing.choose([harmed, helped, harmed], 2, worth)) == 2
