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
from rich.console import Console
from rich.table import Table

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.evaluation import benchmark, plots, replay, report, systems, trace
from fairseq_aggdec.evaluation.session import Session, generation_parser
from fairseq_aggdec.evaluation.timing import Measurement, different, measure

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "checkpoints" / "ua_gec"
SYSTEMS = ("beam5", "beam1", "greedy", "iad")
COLUMNS = (
    "decoder",
    "seconds",
    "sentences / s",
    "x beam 5",
    "mean accepted",
    "same as greedy",
)
INTRODUCTION = (
    "A Transformer corrects the grammar of real Ukrainian sentences (test set of UA-GEC), one sentence at a time. "
    "Input-guided aggressive decoding (IAD) guesses that the output goes on as the input does, checks the guess in one "
    "call of the decoder, and keeps what greedy decoding would have written too. So the text is the same, only sooner."
)


def prepare(folder: Path, limit: int | None) -> list[str]:
    """Sentences in subwords with their dictionaries; returns fairseq's arguments for them."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(SHIPPED / "spm.model"))
    text = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()
    sentences = benchmark.spread(text, limit)
    encoded = "".join(" ".join(row) + "\n" for row in pieces.encode(sentences, out_type=str))
    names = f"{replay.SPLIT}.{replay.SOURCE}-{replay.TARGET}.{replay.SOURCE}"
    (folder / names).write_text(encoded, encoding="utf-8")
    for side, name in ((replay.SOURCE, "dict.src.txt"), (replay.TARGET, "dict.tgt.txt")):
        shutil.copy(SHIPPED / name, folder / f"dict.{side}.txt")
    return [*replay.data_arguments(folder, SHIPPED / "checkpoint.pt"), "--cpu"]


def rows_of(measurements: Sequence[Measurement]) -> list[list[str]]:
    """The table, a row per decoder."""
    by_name = {measurement.name: measurement for measurement in measurements}
    rows = []
    for name, m in by_name.items():
        differing = different(m, by_name["beam1"])
        same = "yes" if differing == 0 else f"no, {differing} differ"
        rows.append(
            [
                systems.LABELS[name],
                f"{m.total:.1f}",
                f"{len(m.outputs) / m.total:.1f}",
                f"{by_name['beam5'].total / m.total:.1f}",
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


def draw(session: Session, measurements: Sequence[Measurement], folder: Path) -> dict[str, Path]:
    """Plots for the report: heading -> file."""
    by_name = {measurement.name: measurement for measurement in measurements}
    base, method = by_name["beam1"], by_name["iad"]
    speedups = [a / b for a, b in zip(base.seconds, method.seconds, strict=True)]
    ratios = benchmark.edit_ratios(session, method, None)
    label = systems.LABELS["beam1"]
    return {
        "The fewer edits, the faster": plots.speedup_against_edits(
            ratios, speedups, label, folder / "edits.svg"
        ),
        "Speed-up of single sentences": plots.speedup_distribution(
            speedups, label, folder / "distribution.svg"
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, help="sentences (default: all that are shipped)")
    # Two threads gain little at this size, and lose a great deal while anything else runs.
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", type=Path, default=ROOT / "report.html")
    args = parser.parse_args()
    if not (SHIPPED / "checkpoint.pt").exists():
        raise SystemExit(f"error: {SHIPPED} lacks checkpoint.pt: is the checkout complete?")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="demo-") as temporary:
        folder = Path(temporary)
        session = Session(generation_parser(None), prepare(folder, args.limit))
        torch.set_num_threads(args.threads)
        batches = session.batches(1)
        console.print(f"Correcting {len(batches)} sentences with {len(SYSTEMS)} decoders ...")
        measurements = measure([systems.build(name, session) for name in SYSTEMS], batches)
        rows = rows_of(measurements)
        console.print(table_of(rows))
        console.print(
            "Mean accepted: tokens written per call of the decoder. Beam 5 searches, so it may differ."
        )
        chosen = trace.choose(systems.record("iad", session, batches))
        dictionaries = session.task.source_dictionary, session.task.target_dictionary
        traces = [trace.trace(record, *dictionaries) for record in chosen]
        console.print("\nHow IAD decoded three of them, a line per call of the decoder:")
        trace.show(console, traces)
        report.write(
            args.report,
            "fairseq_aggdec: the same text, sooner",
            INTRODUCTION,
            COLUMNS,
            rows,
            traces,
            draw(session, measurements, folder),
        )
    console.print(f"\nThe same with plots: {os.path.relpath(args.report)}")


if __name__ == "__main__":
    main()
