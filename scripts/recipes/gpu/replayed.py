"""Times systems on models with random weights, the drafts of which are replayed: of ten drafted tokens four are right.

    python -m scripts.recipes.gpu.replayed --folder FOLDER --size base --systems beam5 greedy gad --batch-sizes 1 32 \
        --output FILE --fp16

Models are made in FOLDER, unless they are there. Options that are not its own go to fairseq-generate. Every cell warms
up on all of its batches until nothing is captured any more. Then it is the median of three passes, systems in turn. A
cell during which a graph was captured all the same says so. With --adding the kernels that may run are none, then those
of one probe after the other.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench import systems, timing
from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.cli.doctor import GPU_KERNELS
from fairseq_aggdec.kernels.gpu.nvrtc import Module
from fairseq_aggdec.kernels.gpu.operators import PROBES
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import refusals, write_table
from scripts import random_models
from scripts.recipes import tables
from scripts.recipes.gad import replay

Row = dict[str, Any]

# Outputs of so many tokens, drafts of so many, of which so many stand.
LENGTH, DRAFTED, STANDING = 24, 10, 4
# As `aggdec train-drafter` makes it: without the source copy of nar_drafter_base, with which the host sees every draft.
CHAIN = ["--arch", "nar_drafter", "--decoder-layers", "1", "--slot-predicts", "next"]
CHAIN += ["--prefix-attention", "causal", "--slot-chain"]
WARM, PASSES, FEWEST = 3, 3, 12


class Base:
    """Sessions with random weights, made when they are first needed.

    Args:
        folder: of models. size: of them, see :data:`scripts.random_models.SIZES`.
        flags: of fairseq-generate.
        sentences: how many there are.
    """

    def __init__(self, folder: Path, size: str, flags: Sequence[str], sentences: int):
        self.folder, self.size, self.flags, self.sentences = folder, size, list(flags), sentences

    @functools.cached_property
    def drafter(self) -> tuple[Session, replay.ReplayDrafter]:
        """A verifier with a drafter of one layer, and what replays drafts."""
        return self._made("drafter", CHAIN, False)

    @functools.cached_property
    def heads(self) -> tuple[Session, replay.ReplayDrafter]:
        """A verifier with block heads, and what replays drafts."""
        return self._made("heads", None, True)

    def _made(
        self, name: str, drafter: list[str] | None, heads: bool
    ) -> tuple[Session, replay.ReplayDrafter]:
        records = [record(index, alone=heads) for index in range(self.sentences)]
        folder = self.folder / f"{self.size}-{name}-{self.sentences}"
        made = random_models.prepare(folder, self.size, records, drafter, heads)
        made += ["--min-len", str(LENGTH), "--max-len-a", "0", "--max-len-b", str(LENGTH)]
        given = [*made, "--draft-tokens", str(DRAFTED), *self.flags]
        session = Session(generation_parser(None), given)
        if "--cpu" not in self.flags and not session.cuda:
            raise RuntimeError("PyTorch finds no GPU")
        return session, replay.replay_drafter(session, records)

    def system(self, name: str) -> System:
        """A system; one of ours that drafts gets the drafts of the replay."""
        session, drafts = self.heads if name == "blockwise" else self.drafter
        system = systems.build(name, session)
        replay.force_drafts(system, drafts, session.cuda)
        return system


def record(index: int, alone: bool = False) -> Record:
    """Source and output of the same length, every draft as right as every other.

    Args:
        index: of the sentence.
        alone: nothing is drafted at first: heads read what the verifier read before.
    """
    iterations, left = [], LENGTH + 1
    if alone:
        iterations, left = [Iteration([], [0], 0, [0])], left - 1
    while left:
        gained = min(STANDING + 1, left)
        drafted = [0] * min(DRAFTED, left - 1)
        iterations.append(Iteration(drafted, [0] * (len(drafted) + 1), gained - 1, [0] * gained))
        left -= gained
    return Record(index, [*range(4, 4 + LENGTH), 2], iterations)


def timed(
    running: Sequence[System], batches: Sequence[Mapping[str, Any]], **names: Any
) -> Iterator[Row]:
    """Rows of systems in turn on some batches; one that fails is left out with the reason."""
    ready, launched = [], {}
    for system in running:
        try:
            with launches() as launched[system.name]:
                for _ in range(1 if system.stock else WARM):  # stock captures nothing
                    for sample in batches:
                        system.decode(dict(sample))
            ready.append(system)
        except Exception as error:
            yield failed(system.name, error, **names)
    found = timing.measure(ready, [dict(one) for one in batches], 0, PASSES) if ready else []
    for one in found:
        sentences, first = len(one.outputs), found[0]
        yield names | {
            "system": systems.label(one.name),
            "ms / sentence": 1e3 * one.total / sentences,
            "ms / token": 1e3 * one.total / one.tokens * len(batches[0]["id"]),
            "sentences / s": sentences / one.total,
            "x first": first.total / one.total,
            "tokens / iteration": one.mean_accepted,
            "other than first": timing.different(first, one),
            "captures": one.captured,
            "kernels": ", ".join(sorted(launched[one.name])),
        }


def failed(name: str, error: BaseException, **names: Any) -> Row:
    what = f"{type(error).__name__}: {error}"[:300]
    return names | {"system": systems.label(name), "error": what}


@contextmanager
def launches() -> Iterator[set[str]]:
    """Collects the names of the kernels that are launched, or captured, within this."""
    found: set[str] = set()
    plain = Module.launch

    def launch(module: Module, name: str, *given: Any) -> None:
        found.add(name)
        plain(module, name, *given)

    with mock.patch.object(Module, "launch", launch):
        yield found


def cells(base: Base, names: Sequence[str], size: int, **more: Any) -> Iterator[Row]:
    """Cells of systems in batches of a size."""
    running = []
    for name in names:
        try:
            running.append(base.system(name))
        except (Exception, SystemExit) as error:
            yield failed(name, error, batch=size, **more)
    session, _ = base.drafter
    batches = session.batches(size, min(base.sentences, max(FEWEST, size)))
    yield from timed(running, batches, batch=size, **more)


def adding(base: Base, names: Sequence[str], size: int) -> Iterator[Row]:
    """The same with no kernel of ours, then with those of one probe more each time, as far as they are proven."""
    before = os.environ.get(VARIABLE)
    off = [f"no-{PROBES[agree].names[0]}" for agree in GPU_KERNELS.values()]
    try:
        for count, what in enumerate(["nothing", *GPU_KERNELS]):
            os.environ[VARIABLE] = ",".join(filter(None, [before, *off[count:]]))
            yield from cells(base, names, size, added=what)
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="of models")
    add("--size", choices=list(random_models.SIZES), default="base")
    add("--systems", nargs="+", required=True, metavar="NAME", help="as of aggdec bench")
    add("--batch-sizes", type=int, nargs="+", default=[1], metavar="B")
    add("--sentences", type=int, metavar="N", help="as many as the largest batch")
    add("--adding", action="store_true", help="kernels of one probe after the other")
    add("--output", type=Path, required=True, metavar="FILE", help="FILE.json and FILE.md")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if given is None else given)
    args, flags = build_parser().parse_known_args(arguments)
    rows: list[Row] = []
    with refusals():
        command = machine.command("scripts.recipes.gpu.replayed", arguments)
        sentences = args.sentences or max(FEWEST, *args.batch_sizes)
        base = Base(args.folder, args.size, flags, sentences)
        for size in args.batch_sizes:
            for row in (adding if args.adding else cells)(base, args.systems, size):
                rows.append(row)
                title = f"{args.size} size, random weights, drafts replayed"
                write_table(args.output, title, command, tables.of_rows(rows), rows)
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
