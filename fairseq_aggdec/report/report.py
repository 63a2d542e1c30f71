"""Pages that need no other file: sentences call by call, speed against stock, where the time goes, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_aggdec.bench import table
from fairseq_aggdec.bench.systems import label
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.report.pages import templates
from fairseq_aggdec.report.trace import Trace, block, legend

LEAST = 0.001  # share of the time that is shown


@dataclass
class Page:
    """Parts that a page shows; what is empty is left out.

    Attributes:
        introduction: a paragraph of plain words.
        context: model, data, sentences, batch size, threads, precision.
        lines: what a line of a trace is.
        timed: decoders, each with its speed-up over stock.
        table: heading of the table, whose parts are ``columns`` and ``rows``.
        command: that made it.
    """

    title: str
    introduction: str
    context: str = ""
    traces: Sequence[Trace] = ()
    lines: str = "One line is one call of the decoder."
    timed: Sequence[table.Line] = ()
    table: str = "In numbers"
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
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
            **vars(page),
            meaning=legend(page.traces),
            block=block,
            parts=parts,
            least=LEAST,
            label=label,
            machine=machine.sentence(machine.describe()),
        )
    )
    results.write_text(path, text)
