"""One style for all plots: a title, what was measured, and on what.

with sheet(path, Label("Decoding speed", "160 sentences, 1 thread", "a laptop")) as figure:
    figure.subplots().plot([1, 2], [3, 4])
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fairseq_aggdec.records import results
from fairseq_aggdec.report.colours import SERIES, light

WIDTH, HEIGHT = 7.2, 3.6  # inches; 72 points each
MARKERS = "os^Dv*"
LINES = 104  # characters of the smallest text that fit into the width
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it is read aloud, searched and copied
    "svg.hashsalt": "fairseq_aggdec",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": light("muted"),
    "axes.titlepad": 8,
    "axes.labelcolor": light("ink"),
    "axes.edgecolor": light("muted"),
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=[light(role) for role in SERIES])
    + cycler(marker=list(MARKERS)),
    "figure.facecolor": light("paper"),
    "grid.color": light("line"),
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.labelcolor": light("ink"),
    "lines.markersize": 5,
    "text.color": light("ink"),
    "xtick.color": light("muted"),
    "ytick.color": light("muted"),
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}


@dataclass
class Label:
    """Texts that stand around a plot.

    Attributes:
        title: what it shows.
        context: model, data, sentences, batch size, threads.
        machine: what it was measured on.
    """

    title: str
    context: str = ""
    machine: str = ""

    def with_note(self, note: str) -> Label:
        """The same with more about what was measured."""
        return Label(self.title, "; ".join(filter(None, (self.context, note))), self.machine)

    def of(self, shown: str) -> Label:
        """The same about one plot of several."""
        return Label(f"{self.title}: {shown}", self.context, self.machine)


@contextmanager
def sheet(path: Path, label: Label, height: float = HEIGHT) -> Iterator[Figure]:
    """A figure to draw into, which is written to ``path`` at the end.

    Args:
        path: of the SVG file.
        height: inches, without the lines of the label.
    """
    title, context, machine = (
        textwrap.wrap(text, width)
        for text, width in ((label.title, 76), (label.context, LINES), (label.machine, LINES))
    )
    above, below = 0.24 * len(title) + 0.17 * len(context) + 0.1, 0.16 * len(machine) + 0.06
    tall = height + above + below
    left, down = 0.1 / WIDTH, 0.08 + 0.24 * len(title)
    room = (0, below / tall, 1, 1 - (above + below) / tall)
    with matplotlib.rc_context(STYLE):
        whole = Figure(figsize=(WIDTH, tall), layout=ConstrainedLayoutEngine(rect=room))
        for y, lines, size, role, up in (
            (1 - 0.08 / tall, title, 11, "ink", "top"),
            (1 - down / tall, context, 8, "muted", "top"),
            (0.05 / tall, machine, 7, "muted", "bottom"),
        ):
            weight = "bold" if lines is title else "normal"
            text = whole.text(left, y, "\n".join(lines), color=light(role))
            text.set(size=size, weight=weight, ha="left", va=up)
        yield whole
        about = {
            "Title": label.title,
            "Description": f"{label.context}. {label.machine}",
            "Date": None,
        }
        results.write(path, lambda part: whole.savefig(part, format="svg", metadata=about))


def beside(axes: Axes, reverse: bool = False) -> None:
    """The legend of some axes, outside of them at the right."""
    handles, names = axes.get_legend_handles_labels()
    wrapped = ["\n".join(textwrap.wrap(name, 26)) for name in names]
    axes.legend(handles, wrapped, loc="upper left", bbox_to_anchor=(1.01, 1), reverse=reverse)


def ticks(axis: Axis, places: Iterable[float]) -> None:
    """Plain numbers at these places of an axis, and no other marks."""
    axis.set_major_locator(FixedLocator(list(places)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
