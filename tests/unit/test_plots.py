"""Plots, drawings and their colours."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_aggdec.report.colours import COLOURS, SERIES
from scripts.recipes import paper_plots, svg
from scripts.recipes.svg import Label

SPACE = "{http://www.w3.org/2000/svg}"
LABEL = Label(
    "Speed <of> all", "model m.pt; 12 sentences; 1 thread", "a laptop, 2 cores; commit abc"
)
CURVES = {"a": [(16, 60, "left"), (32, 70, "right")], "b": [(16, 65, ""), (32, 75, "")]}
Draw = Callable[[Path], "Path | None"]
DRAWN: dict[str, Draw] = {
    "distribution": lambda path: paper_plots.speedup_distribution(
        [1, 2, 2, 3], "stock", LABEL, path
    ),
    "edits": lambda path: paper_plots.speedup_against_edits([0, 0.5], [3, 1], "stock", LABEL, path),
    "accepted": lambda path: paper_plots.speedup_against_accepted(
        {"exact": [(1.5, 1)], "top-2": [(2, 1.2)]}, LABEL, path
    ),
    "lines": lambda path: paper_plots.lines(
        {"one": CURVES, "two": CURVES}, "N", "%", LABEL, path, True
    ),
    "time": lambda path: paper_plots.time_by_length(
        [3, 8], [20, 10], {"encoder": [1, 2], "search": [3, 4]}, LABEL, path
    ),
}


def texts(path: Path) -> list[str]:
    found = ElementTree.parse(path).getroot().iter(f"{SPACE}text")
    return ["".join(text.itertext()) for text in found]


@pytest.mark.parametrize("name", DRAWN)
def test_every_plot_says_what_was_measured_on_what(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    assert DRAWN[name](path) == path
    written = " ".join(texts(path))
    assert "Speed <of> all" in written and "12 sentences" in written and "laptop" in written


CONTRAST = 4.5
BEHIND = ("paper", "panel")  # roles on which others are written


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours ``#rrggbb``, from 1 (the same) to 21 (black on white)."""
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance of sRGB."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_all_colours_can_be_read_in_light_and_dark() -> None:
    for role, pair in COLOURS.items():
        if role not in (*BEHIND, "line"):
            for theme in (0, 1):
                worst = min(contrast(pair[theme], COLOURS[paper][theme]) for paper in BEHIND)
                assert worst >= CONTRAST, (role, theme)
    shades = [pair[0] for pair in COLOURS.values()]
    assert len(set(shades)) == len(shades)  # a rule for one of them is a rule for one role
    assert len(SERIES) == len(svg.MARKERS) == paper_plots.MOST


def test_no_plot_has_more_than_six_lines(tmp_path: Path) -> None:
    many = {f"line {n}": [(1.0, n, ""), (2.0, n, "")] for n in range(9)}
    paper_plots.lines({"": many}, "x", "y", LABEL, tmp_path / "plot.svg")
    written = texts(tmp_path / "plot.svg")
    assert [text for text in written if text.startswith("line ")] == [f"line {n}" for n in range(6)]
    assert "the first 6 of 9 lines" in " ".join(written)


def test_there_is_no_plot_of_one_point(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    assert paper_plots.speedup_distribution([2.0], "stock", LABEL, path) is None
    assert paper_plots.speedup_against_edits([0.5, 0.5], [1, 2], "stock", LABEL, path) is None
    assert paper_plots.speedup_against_accepted({"exact": [(1, 1)]}, LABEL, path) is None
    assert paper_plots.lines({"": {"a": [(1, 2, "")]}}, "x", "y", LABEL, path) is None
    assert paper_plots.time_by_length([3], [20], {"encoder": [1]}, LABEL, path) is None
    assert not path.exists()
