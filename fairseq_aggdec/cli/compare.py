"""Quality and speed of decoding methods beside each other: all in turn in one process, equality checked beside each.

    aggdec compare DATA --path verifier.pt --gen-subset test --cpu --post-process sentencepiece \\
        --system "beam 5=--decoding stock --beam 5" --system "beam 1=--decoding stock --beam 1" \\
        --system "greedy=--decoding greedy" --system "gad=--decoding gad --drafter-path drafter.pt" \\
        --baselines "beam 5" "greedy" --output docs/results/gad-multi30k

takes every flag of fairseq-generate for all systems; a system adds its own, --path included. What a system gives is
compared with the stock --beam 1 system of the same --path, when there is one. Only decoding is timed.

    --distribution NAME   a histogram, too: speed-up of single sentences by NAME over the first of --baselines
    --hypotheses FOLDER   what each system wrote, for other scorers than BLEU: a file NAME.txt in the order of the set
    --memory              instead: peak memory of each system, in a process of its own
"""

import argparse
import logging
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench import benchmark, comparison, memory
from fairseq_aggdec.bench.comparison import Line, Method
from fairseq_aggdec.bench.timing import Measurement
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.records.quality import texts

MODULE = "fairseq_aggdec.cli.compare"


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
    group.add_argument("--distribution", metavar="NAME")
    group.add_argument("--hypotheses", type=Path, metavar="FOLDER")
    group.add_argument("--memory", action="store_true")
    group.add_argument("--memory-of", metavar="NAME", help=argparse.SUPPRESS)
    group.add_argument("--title", default="Decoding methods", help="heading of the result")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json, .md and -*.svg")
    return parser


def split(item: str) -> tuple[str, list[str]]:
    """Name, which may have "=" in it, and options of a system."""
    found = re.fullmatch(r"(.+?)=(\s*(?:--.*)?)", item, re.DOTALL)
    if found is None:
        raise SystemExit(f"error: --system {item!r}: give NAME=OPTIONS")
    return found[1], shlex.split(found[2])


def parse(arguments: list[str]) -> tuple[argparse.Namespace, dict[str, list[str]]]:
    """The options of the comparison, and the systems' own options by name."""
    args, _ = build_parser().parse_known_args(arguments)
    systems = [split(item) for item in args.systems]
    by_name = dict(systems)
    if len(by_name) < len(systems):
        raise SystemExit("error: --system: two systems have the same name")
    if args.hypotheses is not None and len({file_name(name) for name in by_name}) < len(by_name):
        raise SystemExit(
            "error: --hypotheses: two systems would write the same file; name them otherwise"
        )
    for name in args.baselines:
        if name not in by_name:
            raise SystemExit(f"error: --baselines {name}: there is no --system of this name")
    if args.distribution is not None:
        if args.distribution not in by_name:
            raise SystemExit(
                f"error: --distribution {args.distribution}: there is no --system of this name"
            )
        if not args.baselines or 1 not in args.batch_sizes:
            raise SystemExit("error: --distribution needs --baselines and batch size 1")
    return args, by_name


def load(name: str, options: list[str], arguments: list[str]) -> Method:
    session = Session(build_parser(), [*arguments, *options], reads=["beam"])
    return Method(name, session, int(session.cfg.generation.beam))


def command(arguments: list[str]) -> str:
    return machine.command("compare", arguments)


def peak(args: argparse.Namespace, options: list[str], arguments: list[str]) -> None:
    """Reports the peak of one system, which alone is loaded."""
    method = load(args.memory_of, options, arguments)
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    torch.set_num_threads(args.threads[0])
    system, _ = method.system()
    memory.report(system, method.session.batches(args.batch_sizes[0], args.limit))


def peaks(args: argparse.Namespace, names: Iterable[str], arguments: list[str]) -> None:
    """The table of peak memory."""
    others = [argument for argument in arguments if argument != "--memory"]
    found = {
        batch_size: {name: memory.measure(MODULE, others, name, batch_size) for name in names}
        for batch_size in args.batch_sizes
    }
    table = memory.markdown(found)
    print(table)
    benchmark.write_table(args.output, args.title, command(arguments), table, found)


def file_name(system: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", system) + ".txt"


def write_hypotheses(
    folder: Path, methods: Iterable[Method], measured: Mapping[str, Measurement]
) -> None:
    """FOLDER/NAME.txt of each system; of several batch sizes the last."""
    for method in methods:
        lines = texts(method.session, measured[method.name].outputs)
        results.write_text(folder / file_name(method.name), "".join(x + "\n" for x in lines))


def main(given: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if given is None else given)
    with results.refusals():
        run(arguments)


def run(arguments: list[str]) -> None:
    args, systems = parse(arguments)
    results.check_counts(args, "limit", "repeats", "batch_sizes", "threads")
    results.check_place("--output", args.output, ".json", ".md")
    if args.hypotheses is not None:
        results.check_place("--hypotheses", args.hypotheses / "NAME.txt")
    if args.memory_of is not None:
        peak(args, systems[args.memory_of], arguments)
    elif args.memory:
        peaks(args, systems, arguments)
    else:
        methods = [load(name, options, arguments) for name, options in systems.items()]
        logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
        compare(args, methods, arguments)


def compare(args: argparse.Namespace, methods: list[Method], arguments: list[str]) -> None:
    """The tables and plots of quality and speed."""
    lines: list[Line] = []
    signature = ""
    single: list[float] = []
    for threads in args.threads:
        torch.set_num_threads(threads)
        for batch_size in args.batch_sizes:
            found, signature, measured = comparison.compare(
                methods, args.baselines, batch_size, threads, args.limit, args.repeats
            )
            print(comparison.markdown(found), flush=True)
            lines += found
            if args.hypotheses is not None:
                write_hypotheses(args.hypotheses, methods, measured)
            if args.distribution is not None and batch_size == 1 and not single:
                base = measured[args.baselines[0]]
                single = comparison.speedups(measured[args.distribution], base)
    table = comparison.markdown(lines) + f"\nsacreBLEU signature: `{signature}`"
    extra: dict[str, object] = {"sacrebleu": signature, "precision": methods[0].session.precision}
    if single:
        extra["distribution"] = {
            "system": args.distribution,
            "baseline": args.baselines[0],
            "speedups": single,
        }
    measured_lines = [asdict(line) for line in lines]
    record = benchmark.write_table(
        args.output, args.title, command(arguments), table, measured_lines, extra
    )
    if single or len(args.batch_sizes) > 1:
        from fairseq_aggdec.report import redraw  # of the extra `report`

        redraw.draw(args.output, record)


if __name__ == "__main__":
    main()
