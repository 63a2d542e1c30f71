"""Pages that need no other file: sentences call by call, speed against stock, where the time goes, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_aggdec.bench import table
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.report import colours, svg
from fairseq_aggdec.report.pages import templates
from fairseq_aggdec.report.speed import Timed
from fairseq_aggdec.report.trace import Trace, block, legend

LEAST = 0.001  # share of the time that is shown


@dataclass
class Page:
    """What a page shows; what is empty is left out.

    Attributes:
        introduction: a paragraph of plain words.
        context: model, data, sentences, batch size, threads, precision.
        lines: what a line of a trace is.
        timed: decoders.
        table: heading of the table, whose parts are ``columns`` and ``rows``.
        plots: heading -> SVG file, which is taken into the page.
        command: that made it.
    """

    title: str
    introduction: str
    context: str = ""
    traces: Sequence[Trace] = ()
    lines: str = "One line is one call of the decoder."
    timed: Sequence[Timed] = ()
    table: str = "In numbers"
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    plots: Mapping[str, Path] = field(default_factory=dict)
    command: str = ""


def write(path: Path, page: Page) -> None:
    """Writes a page.

    Raises:
        OSError: it cannot be written; an older file stays.
    """
    seen = [part for one in page.timed for part, share in one.parts.items() if share >= LEAST]
    parts = [part for part in table.MODULES if part in seen]
    text = (
        templates()
        .get_template("report.html")
        .render(
            **{**vars(page), "plots": inlined(page.plots)},
            light=colours.variables(dark=False),
            dark=colours.variables(dark=True),
            meaning=legend(page.traces),
            block=block,
            bars=bars(page.timed),
            compared=compared(page.timed),
            parts=parts,
            shares=shares(page.timed, parts),
            machine=machine.sentence(machine.describe()),
        )
    )
    results.write_text(path, text)


def bars(timed: Sequence[Timed]) -> list[dict[str, object]]:
    """A row of the table of speeds for each decoder; widths in percent of the slowest."""
    slowest = max((one.milliseconds for one in timed), default=1)
    return [
        {
            "name": one.name,
            "ours": one.ours,
            "width": f"{100 * one.milliseconds / slowest:.1f}",
            "milliseconds": f"{one.milliseconds:.1f}",
            "speedup": f"{one.speedup:.1f}" if one.ours else "",
            "same": same(one),
        }
        for one in timed
    ]


def same(one: Timed) -> str:
    """What is said about the text of a decoder beside stock's."""
    if one.differ is None:
        return ""
    return "yes" if one.differ == 0 else f"no, {one.differ} differ"


def compared(timed: Sequence[Timed]) -> str:
    """What the table of speeds compares."""
    if not timed:
        return ""
    return (
        f"Milliseconds of decoding per sentence, {timed[0].sentences} sentences one at a time, all decoders in turn in "
        "one process. Speed-up: over stock fairseq with the same beam. Same: every sentence has the tokens that stock "
        "fairseq writes with this beam."
    )


def shares(timed: Sequence[Timed], parts: Sequence[str]) -> list[dict[str, object]]:
    """The time of each decoder that counts it, by part; widths in percent of the slowest of them."""
    counted = [one for one in timed if one.parts]
    slowest = max((one.milliseconds for one in counted), default=1)
    return [
        {
            "name": one.name,
            "widths": {
                number: f"{100 * one.parts[part] * one.milliseconds / slowest:.1f}"
                for number, part in enumerate(parts, start=1)
                if one.parts[part] >= LEAST
            },
            "words": ", ".join(
                f"{part} {one.parts[part] * one.milliseconds:.1f}"
                for part in parts
                if one.parts[part] >= LEAST
            ),
        }
        for one in counted
    ]


def inlined(plots: Mapping[str, Path]) -> dict[str, str]:
    """The ``<svg>`` element of each file, its ids unlike those of the others."""
    found = {}
    for number, (heading, plot) in enumerate(plots.items(), start=1):
        text = plot.read_text(encoding="utf-8")
        found[heading] = svg.renamed(text[text.index("<svg") :], f"plot-{number}")
    return found
