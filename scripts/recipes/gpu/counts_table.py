"""What every method asks of a GPU per iteration, counted without one: kernels, views, copies, and host waits.

    python -m scripts.recipes.gpu.counts_table --output docs/results/device-counts
    python -m scripts.recipes.gpu.counts_table greedy "gad, chain" --places

decodes a small batch with random models of 6+6 layers on a device that lives in CPU memory and refuses what CUDA would
refuse. A method is chosen by the beginning of its name. --places lists every line that asks for something, not only
those where the host waits.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import fairseq_aggdec  # noqa: F401  (registers the models)
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_table
from scripts.recipes.gpu import device_counts

MEANING = f"""Random models of {device_counts.LAYERS}+{device_counts.LAYERS} layers, {device_counts.ROWS} sentences.
Kernels that the host launches (a captured graph counts as one), those in graphs, views, copies between host and
device: the mean of an iteration from the second on (of the whole batch where
there is one iteration). Host waits: the most in one of these iterations, in the start (what comes before the first
iteration, and that iteration itself), and in the end (behind the last iteration)."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", help="how their names begin (default: all)")
    parser.add_argument("--rows", type=int, default=device_counts.ROWS, help="sentences in a batch")
    parser.add_argument("--places", action="store_true", help="list every line")
    parser.add_argument("--output", type=Path, help="OUTPUT.json and OUTPUT.md")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.rows < 1:
        parser.error(f"--rows {args.rows}: it must be at least 1")
    try:
        cases = device_counts.chosen(args.methods)
    except ValueError as error:
        parser.error(str(error))
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        counted = {case.name: device_counts.count(case, Path(folder), args.rows) for case in cases}
    parts = [MEANING, device_counts.table(counted), "## Where the host waits"]
    parts.append(device_counts.waits(counted))
    if args.places:
        parts += ["## Every line", device_counts.lines(counted)]
    text = "\n\n".join(parts)
    print(text)
    if args.output:
        given = sys.argv[1:] if arguments is None else arguments
        command = machine.command("scripts.recipes.gpu.counts_table", given)
        title = "What decoding asks of a GPU, counted on the strict device"
        results = {name: counts.record() for name, counts in counted.items()}
        write_table(args.output, title, command, text, results)


if __name__ == "__main__":
    main()
