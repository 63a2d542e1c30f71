"""``report.html``: table, traces and plots of a run in one file that needs no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from fairseq_aggdec.evaluation import machine
from fairseq_aggdec.evaluation.trace import Trace, block, legend


def write(
    path: Path,
    title: str,
    introduction: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    traces: Sequence[Trace],
    plots: Mapping[str, Path],
) -> None:
    """Writes the report.

    Args:
        introduction: a paragraph of plain words.
        columns, rows: the table.
        plots: heading -> SVG file, which is taken into the page.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template("report.html").render(
        title=title,
        introduction=introduction,
        columns=columns,
        rows=rows,
        meaning=legend(traces),
        block=block,
        traces=traces,
        plots={heading: inline(plot) for heading, plot in plots.items()},
        machine=machine.sentence(machine.describe()),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def inline(plot: Path) -> str:
    """The ``<svg>`` element of a file, without what stands before it."""
    text = plot.read_text(encoding="utf-8")
    return text[text.index("<svg") :]
