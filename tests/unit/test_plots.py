"""Plots and their colours: what a reader, a screen reader and a dark page need is in every SVG file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_aggdec.report import plots, svg
from fairseq_aggdec.report.colours import COLOURS, SERIES
from fairseq_aggdec.report.svg import Label
from scripts.recipes import paper_plots
from scripts.recipes.lattice import drawing
from tests.unit.test_lattice_drawing import make_record

SPACE = "{http://www.w3.org/2000/svg}"
LABEL = Label(
    "Speed <of> all", "model m.pt; 12 sentences; 1 thread", "a laptop, 2 cores; commit abc"
)
SYSTEMS = {
    f"system {n}": {size: (9 - n) / size for size in (1, 8, 32)} for n in range(plots.MOST + 3)
}
CURVES = {"a": [(16, 60, "left"), (32, 70, "right")], "b": [(16, 65, ""), (32, 75, "")]}
Draw = Callable[[Path], "Path | None"]
DRAWN: dict[str, Draw] = {
    "batch": lambda path: plots.latency_against_batch(SYSTEMS, LABEL, path),
    "distribution": lambda path: plots.speedup_distribution([1, 2, 2, 3], "stock", LABEL, path),
    "edits": lambda path: plots.speedup_against_edits([0, 0.5], [3, 1], "stock", LABEL, path),
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
def test_every_plot_can_be_read_without_eyes_and_inlined_beside_others(
    name: str, tmp_path: Path
) -> None:
    assert DRAWN[name](tmp_path / "One Plot.svg") == tmp_path / "One Plot.svg"
    root = ElementTree.parse(tmp_path / "One Plot.svg").getroot()
    assert root.get("role") == "img"
    named = {element.get("id"): element for element in root.iter() if element.get("id")}
    title, about = (named[part] for part in str(root.get("aria-labelledby")).split())
    assert title.text == "Speed <of> all"
    assert "12 sentences" in str(about.text) and "laptop" in str(about.text)
    text = (tmp_path / "One Plot.svg").read_text()
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert all(one.startswith("one-plot") for one in ids)
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', text)) <= set(ids)
    # What is written is text, and says what was measured on what.
    written = " ".join(texts(tmp_path / "One Plot.svg"))
    assert "Speed <of> all" in written and "12 sentences" in written and "laptop" in written


@pytest.mark.parametrize("name", DRAWN)
def test_every_colour_has_a_twin_for_dark_pages(name: str, tmp_path: Path) -> None:
    DRAWN[name](tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    rules, drawn = re.findall(r"<style>(.*?)</style>(.*)", text, re.DOTALL)[0]
    assert rules.startswith("@media (prefers-color-scheme: dark)")
    used = set(re.findall(r"(fill|stroke): (#\w+)", drawn))
    assert len(used) > 3
    for what, colour in used:
        assert f'#plot [style*="{what}: {colour}"]{{{what}:' in rules, (what, colour)


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


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#888888", "#ffffff") == pytest.approx(3.54, abs=0.01)
    assert contrast("#ffffff", "#888888") == contrast("#888888", "#ffffff")


def test_all_colours_can_be_read_in_light_and_dark() -> None:
    for role, pair in COLOURS.items():
        if role not in (*BEHIND, "line"):
            for theme in (0, 1):
                worst = min(contrast(pair[theme], COLOURS[paper][theme]) for paper in BEHIND)
                assert worst >= CONTRAST, (role, theme)
    shades = [pair[0] for pair in COLOURS.values()]
    assert len(set(shades)) == len(shades)  # a rule for one of them is a rule for one role
    assert len(SERIES) == len(svg.MARKERS) == plots.MOST


def test_the_baseline_and_the_fastest_of_many_systems_are_shown(tmp_path: Path) -> None:
    """System 0 is the baseline; of the others the last are the fastest."""
    plots.latency_against_batch(SYSTEMS, LABEL, tmp_path / "plot.svg")
    written = texts(tmp_path / "plot.svg")
    shown = [text for text in written if text.startswith("system ")]
    assert shown == [f"system {n}" for n in (0, 4, 5, 6, 7, 8)]
    assert "of 9 systems" in " ".join(written)


def test_no_plot_has_more_than_six_lines(tmp_path: Path) -> None:
    many = {f"line {n}": [(1.0, n, ""), (2.0, n, "")] for n in range(9)}
    paper_plots.lines({"": many}, "x", "y", LABEL, tmp_path / "plot.svg")
    written = texts(tmp_path / "plot.svg")
    assert [text for text in written if text.startswith("line ")] == [f"line {n}" for n in range(6)]
    assert "the first 6 of 9 lines" in " ".join(written)


def test_marks_stand_where_the_data_is(tmp_path: Path) -> None:
    plots.latency_against_batch(SYSTEMS, LABEL, tmp_path / "plot.svg")
    written = texts(tmp_path / "plot.svg")
    assert written[: written.index("batch size, sentences")] == ["1", "8", "32"]


def test_legends_stand_beside_the_data(tmp_path: Path) -> None:
    plots.latency_against_batch(SYSTEMS, LABEL, tmp_path / "plot.svg")
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    named = {element.get("id"): element for element in root.iter() if element.get("id")}
    frame = str(named["plot-patch_2"].find(f"{SPACE}path").get("d"))  # type: ignore[union-attr]
    right = max(float(x) for x in re.findall(r"[ML] ([\d.]+) ", frame))
    legend = [float(str(text.get("x"))) for text in named["plot-legend_1"].iter(f"{SPACE}text")]
    width = float(str(root.get("viewBox")).split()[2])
    assert len(legend) == 6
    assert right < min(legend) <= max(legend) < width


def test_there_is_no_plot_of_one_point(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    one = {name: {1: seconds[1]} for name, seconds in SYSTEMS.items()}
    assert plots.latency_against_batch(one, LABEL, path) is None
    assert plots.speedup_distribution([2.0], "stock", LABEL, path) is None
    assert plots.speedup_against_edits([0.5, 0.5], [1, 2], "stock", LABEL, path) is None
    assert paper_plots.speedup_against_accepted({"exact": [(1, 1)]}, LABEL, path) is None
    assert paper_plots.lines({"": {"a": [(1, 2, "")]}}, "x", "y", LABEL, path) is None
    assert paper_plots.time_by_length([3], [20], {"encoder": [1]}, LABEL, path) is None
    assert not path.exists()


def test_plots_are_the_same_each_time(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        plots.latency_against_batch(SYSTEMS, LABEL, tmp_path / folder / "plot.svg")
    one, two = ((tmp_path / folder / "plot.svg").read_bytes() for folder in ("one", "two"))
    assert one == two


def test_two_drawings_of_a_lattice_fit_into_one_page() -> None:
    drawn = [drawing.svg(make_record(None), name) for name in ("first", "second")]
    ids = [set(re.findall(r'\bid="([^"]*)"', text)) for text in drawn]
    assert ids[0] and not set.intersection(*ids)
    root = ElementTree.fromstring(drawn[0])
    assert root.get("role") == "img" and root.get("viewBox")
    assert [root.findtext(f"{SPACE}{part}") for part in ("title", "desc")] == [
        "Lattice of 3 positions, its best path in bold",
        "Best path: c b </s>",
    ]


def test_lattice_drawings_change_with_the_theme() -> None:
    rules = re.findall(r"<style>(.*?)</style>", drawing.svg(make_record(None)))[0]
    dark = {what: pair[1] for what, pair in COLOURS.items()}
    assert f"#lattice rect{{fill:{dark['paper']}}}" in rules
    assert f"#lattice text{{fill:{dark['ink']}}}" in rules
