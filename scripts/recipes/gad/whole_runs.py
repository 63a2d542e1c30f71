"""Speed of whole runs: what a method that learns while it decodes costs and brings, its tries and mistakes included.

    python -m scripts.recipes.gad.whole_runs DATA --path model.pt --gen-subset test --cpu \\
        --system "greedy=--decoding greedy" \\
        --system "auto=--decoding blockwise --draft-tokens auto" --batch-sizes 1 8 32 --passes 5 --output OUTPUT

takes every flag of fairseq-generate for all systems; a system adds its own, --path included. The first system is the
baseline. In every pass each system begins with nothing learned and decodes all batches once, shortest sentences first,
batch by batch in turn; the one that was first in a batch is last in the next. Summed up is processor time of this
process, which has one thread, on a GPU time; a speed is that of the baseline over the same pass. Beside it stands how
many outputs are not those of the baseline.
"""

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench.command_line import split
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.records.results import write_table
from fairseq_aggdec.search.counters import Counters

COLUMNS = (
    "system",
    "batch",
    "x baseline, median",
    "of single passes",
    "ms / sentence",
    "tokens / iteration",
    "drafted / iteration",
    "without drafts, %",
    "differ",
)


@dataclass
class Method:
    """A name and a session whose command line says how it decodes."""

    name: str
    session: Session

    def generator(self) -> tuple[Any, Counters]:
        beam = int(self.session.cfg.generation.beam)
        return self.session.generator(str(self.session.task.cfg.decoding), beam)


@dataclass
class Line:
    """One system in batches of one size.

    Attributes:
        seconds: of every pass.
        speeds: over the baseline, of every pass.
        tokens, iterations, drafted, undrafted, sentences: of all passes; see
            :class:`~fairseq_aggdec.search.counters.Counters`.
        differ: outputs that are not those of the baseline.
    """

    system: str
    batch: int
    seconds: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    tokens: int = 0
    iterations: int = 0
    drafted: int = 0
    undrafted: int = 0
    sentences: int = 0
    differ: int = 0

    def add(self, counted: Counters) -> None:
        for name in ("tokens", "iterations", "drafted", "undrafted", "sentences"):
            setattr(self, name, getattr(self, name) + getattr(counted, name))

    def row(self) -> str:
        each = sum(self.seconds) / max(1, self.sentences)
        iterations = max(1, self.iterations)
        cells = [
            self.system,
            str(self.batch),
            f"{statistics.median(self.speeds):.2f}",
            " ".join(f"{speed:.2f}" for speed in self.speeds),
            f"{1e3 * each:.2f}",
            f"{self.tokens / iterations:.2f}",
            f"{self.drafted / iterations:.2f}",
            f"{100 * self.undrafted / max(1, self.sentences):.0f}",
            str(self.differ),
        ]
        return "| " + " | ".join(cells) + " |"


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("whole runs")
    group.add_argument(
        "--system", action="append", required=True, metavar="NAME=OPTIONS", dest="systems"
    )
    group.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32], metavar="B")
    group.add_argument("--passes", type=int, default=3)
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--title", default="Whole runs", help="heading of the result")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json and OUTPUT.md")
    return parser


def clock(session: Session) -> Callable[[], float]:
    """Processor time of this process; on a GPU time, when it is idle."""
    if not session.cuda:
        return time.process_time

    def read() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return read


def measure(methods: Sequence[Method], batch: int, passes: int, limit: int | None) -> list[Line]:
    """A line for every system in batches of one size."""
    lines = [Line(method.name, batch) for method in methods]
    batches, read = methods[0].session.batches(batch, limit), clock(methods[0].session)
    for number in range(passes):
        made = [method.generator() for method in methods]
        spent = [0.0] * len(made)
        order = list(range(len(made)))
        for sample in tqdm(
            batches, desc=f"batch {batch}, pass {number + 1}", leave=False, disable=None
        ):
            order.append(order.pop(0))  # who comes behind whom finds other things in the caches
            found: list[list[list[int]]] = [[]] * len(made)
            for place in order:
                began = read()
                hypotheses = methods[place].session.decode(made[place][0], sample)
                spent[place] += read() - began
                found[place] = [hypothesis["tokens"].tolist() for hypothesis in hypotheses]
            for line, outputs in zip(lines, found, strict=True):
                line.differ += sum(map(list.__ne__, outputs, found[0]))
        for line, seconds, (_, counted) in zip(lines, spent, made, strict=True):
            line.seconds.append(seconds)
            line.speeds.append(spent[0] / seconds)
            line.add(counted)
    return lines


def main(given: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if given is None else given)
    with results.refusals():
        args, _ = build_parser().parse_known_args(arguments)
        results.check_counts(args, "limit", "batch_sizes", "passes")
        results.check_place("--output", args.output, ".json", ".md")
        methods = []
        for name, options in map(split, args.systems):
            given = [*arguments, *options]
            session = Session(build_parser(), given, always_draft=False, reads=["beam"])
            methods.append(Method(name, session))
        logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
        torch.set_num_threads(1)
        lines: list[Line] = []
        table = ["| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS)]
        for batch in args.batch_sizes:
            found = measure(methods, batch, args.passes, args.limit)
            table += [line.row() for line in found]
            print("\n".join(table[-len(found) :]), flush=True)
            lines += found
        command = machine.command("scripts.recipes.gad.whole_runs", arguments)
        measured = [asdict(line) for line in lines]
        write_table(args.output, args.title, command, "\n".join(table), measured)


if __name__ == "__main__":
    main()
