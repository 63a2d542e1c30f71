"""Plots and tables of result files drawn anew from their JSON, in today's looks; nothing is measured.

    python -m scripts.redraw docs/results/*.json

writes OUTPUT-*.svg and OUTPUT.md beside each OUTPUT.json that has any; numbers, machine and commit are those of the
file. Files in which there is nothing to draw are named and passed over.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fairseq_aggdec  # noqa: F401  (registers what the names of systems need)
from fairseq_aggdec.records import results
from fairseq_aggdec.report import redraw


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
        drawn = redraw.draw(output, record)
        table = redraw.tables(output, record) if tables else None
    except (KeyError, TypeError, IndexError) as error:
        raise SystemExit(
            f"error: {path} lacks what its plots show: {type(error).__name__} {error}"
        ) from error
    return drawn if table is None else [*drawn, table]


if __name__ == "__main__":
    main(sys.argv[1:])
