"""Quality and speed of decoding methods beside each other: all in turn in one process, equality checked beside each.

    python scripts/compare.py DATA --path verifier.pt --gen-subset test --cpu --post-process sentencepiece \\
        --system "beam 5=--beam 5" --system "beam 1=--beam 1" --system "greedy=--decoding greedy" \\
        --system "gad=--decoding gad --drafter-path drafter.pt" \\
        --baselines "beam 5" "greedy" --output docs/results/gad-multi30k

takes every flag of fairseq-generate for all systems; a system adds its own, --path included. What a system gives is
compared with the stock --beam 1 system of the same --path, when there is one. Only decoding is timed.
"""

import argparse
import logging
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.evaluation import benchmark, comparison, plots
from fairseq_aggdec.evaluation.comparison import Line, Method
from fairseq_aggdec.evaluation.session import Session, generation_parser


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--system", action="append", required=True, metavar="NAME=OPTIONS", dest="systems"
    )
    group.add_argument("--baselines", nargs="*", default=[], metavar="NAME")
    group.add_argument("--batch-sizes", type=int, nargs="+", default=[1], metavar="B")
    group.add_argument("--threads", type=int, nargs="+", default=[1], metavar="T")
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--repeats", type=int, default=1, help="times each batch is decoded")
    group.add_argument("--title", default="Decoding methods", help="heading of the result")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json, .md and -batch.svg")
    return parser


def load(item: str, arguments: list[str]) -> Method:
    """A system from NAME=OPTIONS."""
    name, equals, options = item.partition("=")
    if not equals:
        raise SystemExit(f"error: --system {item!r}: give NAME=OPTIONS")
    session = Session(build_parser(), [*arguments, *shlex.split(options)])
    return Method(name, session, int(session.cfg.generation.beam))


def load_all(arguments: list[str]) -> tuple[argparse.Namespace, list[Method]]:
    args, _ = build_parser().parse_known_args(arguments)
    methods = [load(item, arguments) for item in args.systems]
    names = [method.name for method in methods]
    if len(set(names)) < len(names):
        raise SystemExit("error: --system: two systems have the same name")
    for name in args.baselines:
        if name not in names:
            raise SystemExit(f"error: --baselines {name}: there is no --system of this name")
    return args, methods


def draw(output: Path, lines: list[Line], threads: int) -> None:
    latencies: dict[str, dict[int, float]] = {}
    for line in lines:
        if line.threads == threads:
            seconds = line.seconds / line.sentences
            latencies.setdefault(line.system, {})[line.batch_size] = seconds
    plots.latency_against_batch(latencies, Path(f"{output}-batch.svg"))


def main(arguments: list[str]) -> None:
    args, methods = load_all(arguments)
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    lines: list[Line] = []
    signature = ""
    for threads in args.threads:
        torch.set_num_threads(threads)
        for batch_size in args.batch_sizes:
            found, signature = comparison.compare(
                methods, args.baselines, batch_size, threads, args.limit, args.repeats
            )
            print(comparison.markdown(found), flush=True)
            lines += found
    command = "python scripts/compare.py " + shlex.join(arguments)
    table = comparison.markdown(lines) + f"\nsacreBLEU signature: `{signature}`"
    extra = {"sacrebleu": signature, "precision": methods[0].session.precision}
    results = [asdict(line) for line in lines]
    benchmark.write_table(args.output, args.title, command, table, results, extra)
    if len(args.batch_sizes) > 1:
        draw(args.output, lines, args.threads[0])


if __name__ == "__main__":
    main(sys.argv[1:])
