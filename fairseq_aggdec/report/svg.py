"""One style for all plots: real text, a title and what was measured, light and dark, ids that are the file's own.

with sheet(path, Label("Decoding speed", "160 sentences, 1 thread", "a laptop")) as figure:
    figure.subplots().plot([1, 2], [3, 4])
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fairseq_aggdec.records import results
from fairseq_aggdec.report.colours import COLOURS, SERIES, light
from fairseq_aggdec.report.pages import renamed

WIDTH, HEIGHT = 7.2, 3.6  # inches; 72 points each
MARKERS = "os^Dv*"
LINES = 104  # characters of the smallest text that fit into the width
FONTS = "'DejaVu Sans', Verdana, sans-serif"  # the first is what the layout reckons with, the second as wide
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
        path: of the SVG file; its name makes the ids in it.
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
        results.write(path, lambda partial: _write(whole, label, path.stem, partial))


def _write(figure: Figure, label: Label, name: str, path: Path) -> None:
    drawn = StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    path.write_text(dress(drawn.getvalue(), label, identifier(name)), encoding="utf-8")


def beside(axes: Axes, reverse: bool = False) -> None:
    """The legend of some axes, outside of them at the right."""
    handles, names = axes.get_legend_handles_labels()
    wrapped = ["\n".join(textwrap.wrap(name, 26)) for name in names]
    axes.legend(handles, wrapped, loc="upper left", bbox_to_anchor=(1.01, 1), reverse=reverse)


def identifier(name: str) -> str:
    """A name as the beginning of ids."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "plot"


def dress(text: str, label: Label, prefix: str) -> str:
    """A plot as matplotlib writes it -> one ``<svg>`` element with a title, a description, both themes and own ids."""
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = text.replace("'DejaVu Sans'", FONTS)
    # What uses a marker says its colours; no rule reaches those of the marker itself.
    text = re.sub(
        r"<defs>.*?</defs>",
        lambda marker: re.sub(r"\b(stroke|fill): #\w+;? ?", "", marker[0]),
        text,
        flags=re.DOTALL,
    )
    text = renamed(text, prefix)
    # In a page a rule for everything would be one for the whole page.
    text = text.replace(">*{", f">#{prefix} *{{")
    head, rest = text.split(">", 1)
    head += f' id="{prefix}" role="img" aria-labelledby="{prefix}-title {prefix}-about"'
    about = ". ".join(part for part in (label.context, label.machine) if part)
    return (
        f'{head}>\n<title id="{prefix}-title">{escape(label.title, quote=False)}</title>\n'
        f'<desc id="{prefix}-about">{escape(about, quote=False)}</desc>\n'
        f"<style>{night(prefix)}</style>{rest}"
    )


def night(prefix: str) -> str:
    """Rules for a dark theme: every colour of ours is replaced by its twin, in this drawing only.

    The colours stand in the drawing itself as well, for programs that know no rules.
    """
    rules = (
        f'#{prefix} [style*="{what}: {day}"]{{{what}:{dark} !important}}'
        for day, dark in COLOURS.values()
        for what in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{''.join(rules)}}}"
