"""Plots and tables of result files drawn anew from their JSON, in today's looks; nothing is measured.

    python -m scripts.redraw docs/results/*.json

writes OUTPUT-*.svg and OUTPUT.md beside each OUTPUT.json that has any; numbers, machine and commit are those of the
file. Files in which there is nothing to draw are named and passed over.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fairseq_aggdec  # noqa: F401  (registers what the names of systems need)
from fairseq_aggdec.bench import table
from fairseq_aggdec.records import results
from fairseq_aggdec.report import redraw
from scripts.recipes import paper_plots


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE.json")
    parser.add_argument("--no-tables", action="store_true", help="leave the Markdown as it is")
    return parser


def read(path: Path) -> dict[str, Any]:
    """A result file.

    Raises:
        SystemExit: it is none.
    """
    if path.suffix != ".json":
        raise SystemExit(f"error: {path}: name the .json file of a result")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemExit(f"error: {path} is not JSON: {error}") from None
    if not isinstance(record, dict) or not {"command", "machine"} <= record.keys():
        raise SystemExit(f"error: {path} is no result: it names no command and no machine")
    return record


def write_tables(output: Path, record: redraw.Record) -> Path | None:
    """Writes ``OUTPUT.md`` of a benchmark or a comparison; None for other results."""
    rows: Any = record.get("results")
    if not redraw.is_timed(rows):
        return None
    measure = str(record.get("quality", "BLEU"))
    shown = table.markdown([table.Line(**modern(row)) for row in rows], measure)
    if record.get("sacrebleu"):
        shown += f"\nsacreBLEU signature: `{record['sacrebleu']}`"
    path = results.named(output, ".md")
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    results.write_text(path, results.page(record, shown) + remarks(old))
    return path


def remarks(page: str) -> str:
    """What somebody wrote below the tables of a result."""
    lines = page.splitlines()
    made = [n for n, line in enumerate(lines) if line.startswith(("|", "sacreBLEU signature"))]
    return "".join(f"{line}\n" for line in lines[made[-1] + 1 :]) if made else ""


def modern(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is today: until version 0.1 all systems were compared with beam 1, and some had ``bleu``."""
    new = dict(row)
    if "bleu" in new:
        new["quality"] = new.pop("bleu")
    if "differ_from_beam1" in new:
        new["differ"] = new.pop("differ_from_beam1")
    return new


def main(given: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(given)
    with results.refusals():
        for path, record in [(path, read(path)) for path in args.results]:
            written = draw(path, record, not args.no_tables)
            names = ", ".join(file.name for file in written)
            print(f"{path}: {names or 'nothing to draw'}")


def draw(path: Path, record: dict[str, Any], tables: bool) -> list[Path]:
    """What was written for one result file."""
    output = path.with_name(path.name.removesuffix(".json"))
    try:
        drawn = paper_plots.draw(output, record)
        page = write_tables(output, record) if tables else None
    except (KeyError, TypeError, IndexError) as error:
        raise SystemExit(
            f"error: {path} lacks what its plots show: {type(error).__name__} {error}"
        ) from error
    return drawn if page is None else [*drawn, page]


if __name__ == "__main__":
    main(sys.argv[1:])
