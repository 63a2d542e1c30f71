"""The demo: real sentences of UA-GEC corrected by stock fairseq and by this plugin, side by side.

    bash scripts/demo.sh

One sentence at a time, as a user waits for them. Model and sentences are in checkpoints/ua_gec (CC BY 4.0).
"""

# ruff: noqa: E402
import argparse
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

# `import fairseq` makes everybody log at DEBUG unless the root has a handler by then.
logging.getLogger().addHandler(logging.NullHandler())

import sentencepiece
import torch
from rapidfuzz.distance import Levenshtein
from rich.console import Console
from rich.table import Table

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser, spread
from fairseq_aggdec.bench import systems
from fairseq_aggdec.bench import table as tables
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.bench.timing import Measurement, System, measure
from fairseq_aggdec.records import results
from fairseq_aggdec.report import choosing, trace
from scripts import random_models

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "checkpoints" / "ua_gec"
# System -> stock fairseq with the same beam.
STOCK = {"beam5": "beam5", "search5": "beam5", "beam1": "beam1", "greedy": "beam1", "iad": "beam1"}
SYSTEMS = tuple(STOCK)
SHOWN = 3  # sentences whose iterations are printed
COLUMNS = (
    "decoder",
    "seconds",
    "sentences / s",
    "x stock",
    "mean accepted",
    "same as stock",
)


def prepare(folder: Path, limit: int | None) -> list[str]:
    """Sentences in subwords with their dictionaries; returns fairseq's arguments for them."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(SHIPPED / "spm.model"))
    text = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()
    sentences = spread(text, limit)
    encoded = "".join(" ".join(row) + "\n" for row in pieces.encode(sentences, out_type=str))
    names = f"{random_models.SPLIT}.{random_models.SOURCE}-{random_models.TARGET}.{random_models.SOURCE}"
    (folder / names).write_text(encoded, encoding="utf-8")
    for side, name in (
        (random_models.SOURCE, "dict.src.txt"),
        (random_models.TARGET, "dict.tgt.txt"),
    ):
        shutil.copy(SHIPPED / name, folder / f"dict.{side}.txt")
    return [*random_models.data_arguments(folder, SHIPPED / "checkpoint.pt"), "--cpu"]


def rows_of(running: Sequence[System], measurements: Sequence[Measurement]) -> list[list[str]]:
    """The table, a row per decoder."""
    by_name = {measurement.name: measurement for measurement in measurements}
    rows = []
    for system, m in zip(running, measurements, strict=True):
        name, differing = system.name, tables.differing(system, running, by_name)
        same = "" if differing is None else "yes" if differing == 0 else f"no, {differing} differ"
        rows.append(
            [
                systems.label(name),
                f"{m.total:.1f}",
                f"{len(m.outputs) / m.total:.1f}",
                f"{by_name[STOCK[name]].total / m.total:.1f}",
                "" if m.mean_accepted is None else f"{m.mean_accepted:.2f}",
                same,
            ]
        )
    return rows


def table_of(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title="One sentence at a time", title_justify="left")
    for column in COLUMNS:
        words = column in (COLUMNS[0], COLUMNS[-1])
        table.add_column(column, justify="left" if words else "right", no_wrap=words)
    for row in rows:
        table.add_row(*row)
    return table


def worth_showing(session: Session, records: Sequence[Record], limit: int | None) -> list[Record]:
    """Records of sentences that the correction brought nearer to what both annotators wrote."""
    texts = [
        spread((SHIPPED / f"sample.{name}").read_text("utf-8").splitlines(), limit)
        for name in ("tgt", "tgt2")
    ]
    references = [[text.split() for text in pair] for pair in zip(*texts, strict=True)]
    source, target = session.task.source_dictionary, session.task.target_dictionary

    def edits_less(record: Record) -> bool:
        written = trace.spell(record.output[:-1], target).split()
        read = trace.spell(record.source[:-1], source).split()
        return trace.trace(record, source, target).readable and all(
            Levenshtein.distance(written, text) < Levenshtein.distance(read, text)
            for text in references[record.sentence]
        )

    wanted = [record for record in records if edits_less(record)]
    return choosing.choose(wanted if len(wanted) >= SHOWN else records, SHOWN)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, help="sentences (default: all that are shipped)")
    # Two threads gain little at this size, and lose a great deal while anything else runs.
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", type=Path, help="the page (default: report.html)")
    args = parser.parse_args()
    page = args.report or ROOT / "report.html"
    if not (SHIPPED / "checkpoint.pt").exists():
        raise SystemExit(f"error: {SHIPPED} lacks checkpoint.pt: is the checkout complete?")
    console = Console(record=True)
    with tempfile.TemporaryDirectory(prefix="demo-") as temporary:
        folder = Path(temporary)
        session = Session(generation_parser(None), prepare(folder, args.limit))
        torch.set_num_threads(args.threads)
        batches = session.batches(1)
        console.print(f"Correcting {len(batches)} sentences with {len(SYSTEMS)} decoders ...")
        running = [systems.build(name, session) for name in SYSTEMS]
        measurements = measure(running, batches)
        rows = rows_of(running, measurements)
        console.print(table_of(rows))
        console.print(
            "Mean accepted: tokens written per call of the decoder. x stock: ours with beam 5 beside stock's beam 5, "
            "the others beside its beam 1."
        )
        records = systems.record("iad", session, batches)
        chosen = worth_showing(session, records, args.limit)
        dictionaries = session.task.source_dictionary, session.task.target_dictionary
        traces = [trace.trace(record, *dictionaries) for record in chosen]
        console.print("\nHow IAD decoded three of them, a line per call of the decoder:")
        trace.show(console, traces)
    results.write_text(page, console.export_html())
    console.print(f"\nThe same as a page: {os.path.relpath(page)}")


if __name__ == "__main__":
    main()
