"""How much of the time of one sentence is Python: a batch of one, one thread, the compiled library on a CPU.

    python -m scripts.python_share DATA --path model.pt --gen-subset test --cpu --decoding greedy --int8 all \\
        --limit 64 --rounds 20 --output docs/results/python-share

takes every flag of fairseq-generate. Each call of the compiled library is timed by a wrapper around it. What is left of
``generate()`` is Python: PyTorch's small operators, the watch over the weights (but for the memory that the library
reads for it) and the wrappers count as Python. Of each sentence the shortest of all rounds counts, once of the whole
and once of what is left; the share is that of the sums. Sentences alternate, so the weights are where a long run finds
them. The calls are those that ``cProfile`` counts in a round of their own; those inside PyTorch's C++ are in none.

Let nothing else run: another process takes memory bandwidth, which makes the library slower and the share smaller.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.records.results import write_table

COLUMNS = ("sentences", "ms / sentence", "Python, ms", "Python, %", "functions", "all calls")


@dataclass
class Share:
    """What was measured: seconds of a sentence, the mean over all, and calls of one sentence."""

    sentences: int
    whole: float
    python: float
    functions: float
    calls: float

    def row(self) -> str:
        share = 100 * self.python / self.whole
        times = f"{1000 * self.whole:.2f} | {1000 * self.python:.3f} | {share:.1f}"
        return f"| {self.sentences} | {times} | {self.functions:.0f} | {self.calls:.0f} |"


@dataclass
class Library:
    """Seconds in the compiled library, of all calls between :meth:`begin` and :meth:`end`."""

    seconds: float = 0.0
    before: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> None:
        library = kernels()
        for name, function in list(vars(library).items()):
            if name.startswith("aggdec_"):
                self.before[name] = function
                setattr(library, name, self._timed(function))

    def end(self) -> None:
        for name, function in self.before.items():
            setattr(kernels(), name, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def timed(*given: Any) -> Any:
            began = clock()
            found = function(*given)
            self.seconds += clock() - began
            return found

        return timed


def measure(decode: Callable[[Any], object], samples: Sequence[Any], rounds: int) -> Share:
    """The share of Python in ``decode``, which has decoded all samples before."""
    wholes, rests = [[float("inf")] * len(samples) for _ in range(2)]
    library = Library()
    library.begin()
    try:
        for _ in range(rounds):
            for place, sample in enumerate(samples):
                library.seconds, began = 0.0, time.perf_counter()
                decode(sample)
                spent = time.perf_counter() - began
                wholes[place] = min(wholes[place], spent)
                rests[place] = min(rests[place], spent - library.seconds)
    finally:
        library.end()
    profile = cProfile.Profile()
    for sample in samples:
        profile.runcall(decode, sample)
    stats: Any = pstats.Stats(profile)
    calls = {name: numbers[1] for name, numbers in stats.stats.items()}
    functions = sum(count for (file, _, _), count in calls.items() if file != "~")
    many = len(samples)
    means = sum(wholes) / many, sum(rests) / many
    return Share(many, *means, functions / many, sum(calls.values()) / many)


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    group = parser.add_argument_group("share of Python")
    group.add_argument("--rounds", type=int, default=20)
    group.add_argument("--limit", type=int, help="sentences (default: all), of all lengths")
    group.add_argument("--output", type=Path, required=True, help="OUTPUT.json and OUTPUT.md")
    return parser


def main(given: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if given is None else given)
    with results.refusals():
        args, _ = build_parser().parse_known_args(arguments)
        results.check_counts(args, "limit", "rounds")
        results.check_place("--output", args.output, ".json", ".md")
        torch.set_num_threads(1)
        session = Session(build_parser(), arguments, always_draft=False, reads=["beam"])
        if kernels() is None or session.cuda:
            raise SystemExit(
                "error: the share of Python is measured on a CPU with compiled kernels"
            )
        decoding = str(session.task.cfg.decoding)
        generator, _ = session.generator(decoding, int(session.cfg.generation.beam))
        samples = session.batches(1, args.limit)
        for sample in samples:
            generator.generate(session.models, sample)
        share = measure(
            lambda sample: generator.generate(session.models, sample), samples, args.rounds
        )
        table = "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", share.row()])
        print(table)
        command = machine.command("scripts.python_share", arguments)
        write_table(args.output, f"Share of Python, {decoding}", command, table, asdict(share))


if __name__ == "__main__":
    main()
