"""Is a commit as fast as another, with the same outputs? 36 cells, in turn, each commit in a process of its own.

    python -m scripts.compare_commits 0ea0f14                   that commit against the working tree, 15 minutes
    python -m scripts.compare_commits main~3 main --rounds 5 --output work/commits

The cells are greedy, IAD, GAD with chains and trees, a drafter in Python and beam 5 with the shipped model, block
heads of a random one, greedy and beam 5 with an ensemble of two (the shipped one twice), in fp32 and 8 bits, batches of
1 and 32. Both processes stay loaded and decode the same batch one after the other, so a busy machine disturbs both
alike. What disturbs makes a batch slower and never faster: the fastest time of each batch counts, over all rounds and
over several pairs of processes, whose memory lies otherwise. A ratio is OLD / NEW of their sums: above 1 the new commit
is faster. Exit status 1 if an output differs or a ratio is below ``--least``.

The drafter of GAD and the block heads are random: they are timed, not what they draft.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "checkpoints" / "ua_gec"
WORK = ROOT / "work" / "commits"
WORKING_TREE = "."
METHODS: dict[str, dict[str, Any]] = {
    "greedy": {"decoding": "greedy"},
    "iad": {"decoding": "iad"},
    "gad": {"decoding": "gad", "drafter_path": str(WORK / "drafter.pt"), "draft_tokens": 5},
    "gad, trees": {"decoding": "gad", "drafter_path": str(WORK / "drafter.pt"), "draft_tree": 5},
    "blockwise": {"decoding": "blockwise", "path": WORK / "heads.pt", "draft_tokens": "all"},
    "a drafter in Python": {"decoding": "iad"},
    "beam 5": {"decoding": "beam", "beam": 5},
}
METHODS |= {
    f"{method}, ensemble of two": METHODS[method] | {"path": [MODEL / "checkpoint.pt"] * 2}
    for method in ("greedy", "beam 5")
}
SENTENCES = {1: 24, 32: 96}  # batch size -> sentences of a round


@dataclass(frozen=True)
class Cell:
    method: str
    int8: bool
    batch: int

    @property
    def name(self) -> str:
        return f"{self.method}, {'8 bits' if self.int8 else 'fp32'}, batch {self.batch}"


@dataclass(frozen=True)
class Row:
    """A cell: the fewest processor seconds of each batch, by commit, and whether all outputs were equal."""

    cell: Cell
    old: list[float]
    new: list[float]
    equal: bool

    @property
    def ratio(self) -> float:
        return sum(self.old) / sum(self.new)

    def with_times(self, other: Row) -> Row:
        """The fewest of both."""
        old, new = (
            [min(pair) for pair in zip(mine, others, strict=True)]
            for mine, others in ((self.old, other.old), (self.new, other.new))
        )
        return Row(self.cell, old, new, self.equal and other.equal)


CELLS = [Cell(m, int8, batch) for m in METHODS for int8 in (False, True) for batch in SENTENCES]


def serve() -> None:
    """A worker: reads numbers of batches and cells from stdin, answers with seconds and outputs, as JSON lines."""
    import torch

    import fairseq_aggdec

    torch.set_num_threads(1)
    sentences = (MODEL / "sample.src").read_text(encoding="utf-8").splitlines()
    translators: dict[str, Any] = {}
    print(json.dumps(fairseq_aggdec.__path__[0]), flush=True)
    for line in sys.stdin:
        number, fields = json.loads(line)
        cell = Cell(**fields)
        key = f"{cell.method} {cell.int8}"
        if key not in translators:
            options = {"path": MODEL / "checkpoint.pt"} | METHODS[cell.method]
            translators[key] = fairseq_aggdec.from_pretrained(
                options.pop("path"), MODEL, device="cpu", spm=str(MODEL / "spm.model"),
                max_len_b=100, **({"int8": True} if cell.int8 else {}), **options,
            )  # fmt: skip
            if cell.method == "a drafter in Python":
                translators[key].generator.drafter = repeating_drafter()
            translators[key].translate(sentences[-8:], batch_size=4)  # warms up
        batch = sentences[number * cell.batch : (number + 1) * cell.batch]
        before = time.process_time()
        outputs = translators[key].translate(batch, batch_size=cell.batch)
        seconds = time.process_time() - before
        print(json.dumps([seconds, outputs, loaded_kernels()]), flush=True)


def loaded_kernels() -> list[str]:
    """Instruction sets of the compiled kernels in this process, as ``_avx2``."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = (Path(line.split()[-1]) for line in lines if ".so" in line)
    return sorted({file.name.split(".")[0] for file in mapped if file.parent.name == "kernels"})


def repeating_drafter() -> Any:
    """Drafts what came after the last occurrence of a row's last token, as docs/extending.md does."""
    from fairseq_aggdec.search.drafter import Drafter
    from fairseq_aggdec.windows.draft import Draft

    class RepeatDrafter(Drafter):
        def draft(self, state: Any) -> Draft:
            return Draft([again(row.tokens)[: row.end - row.position] for row in state.rows])

    def again(tokens: list[int]) -> list[int]:
        *before, last = tokens
        return tokens[len(before) - before[::-1].index(last) :] if last in before else []

    return RepeatDrafter()


class Worker:
    """The process of one commit."""

    def __init__(self, tree: Path):
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        code = f"import runpy; runpy.run_path({str(Path(__file__))!r})['serve']()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tree, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(WORK / "log").open("a"),
        )  # fmt: skip
        used = Path(self._answer()).parent
        if used != tree:
            raise RuntimeError(f"the process of {tree} took the package of {used}")

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended: see {WORK / 'log'}")
        return json.loads(line)

    def decode(self, cell: Cell, number: int) -> tuple[float, list[str], list[str]]:
        """A batch of a cell: seconds of the processor, outputs, and the kernels that the process has loaded."""
        assert self.process.stdin is not None
        print(json.dumps([number, asdict(cell)]), file=self.process.stdin, flush=True)
        seconds, outputs, kernels = self._answer()
        return seconds, outputs, kernels

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A folder with a commit and its compiled kernels; the checkout itself for the working tree."""
    if revision == WORKING_TREE:
        yield ROOT
        return
    tree = WORK / git("rev-parse", "--short", f"{revision}^{{commit}}")
    git("worktree", "add", "--force", "--detach", str(tree), revision)
    try:
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=tree, check=True, capture_output=True)
        yield tree
    finally:
        git("worktree", "remove", "--force", str(tree))


def make_models() -> None:
    """A random drafter and a random model with block heads: they are timed, not what they draft."""
    from scripts import random_models

    flags = ["--source-lang=src", "--target-lang=tgt"]
    one = [*flags, "--decoder-layers=1"]
    random_models.write_checkpoint(WORK / "drafter.pt", MODEL, "nar_drafter", *one)
    sizes = [
        f"--{side}-{name}"
        for side in ("encoder", "decoder")
        for name in ("layers=3", "embed-dim=256")
    ]
    heads = [*flags, *sizes, "--block-size=5", "--head-layout=per-head", "--head-hidden-dim=64"]
    random_models.write_checkpoint(WORK / "heads.pt", MODEL, "blockwise_transformer", *heads)


def compared(cell: Cell, old: Worker, new: Worker, rounds: int) -> Row:
    """Decodes the batches of a cell with both in turn; who is first changes from round to round."""
    count = SENTENCES[cell.batch] // cell.batch
    fewest = {worker: [float("inf")] * count for worker in (old, new)}
    kernels: dict[Worker, list[str]] = {}
    outputs: dict[int, list[str]] = {}
    equal = True
    for turn in range(rounds):
        for number in range(count):
            for worker in (old, new) if turn % 2 == 0 else (new, old):
                taken, texts, kernels[worker] = worker.decode(cell, number)
                fewest[worker][number] = min(fewest[worker][number], taken)
                equal &= outputs.setdefault(number, texts) == texts
    if kernels[old] != kernels[new]:
        raise RuntimeError(
            f"OLD decodes with {kernels[old]}, NEW with {kernels[new]}: build both for this processor"
        )
    return Row(cell, fewest[old], fewest[new], equal)


def all_rows(cells: Sequence[Cell], old: Path, new: Path, rounds: int, pairs: int) -> list[Row]:
    """Compares all cells in several pairs of processes, one pair after the other; the fewest seconds of all count."""
    rows: list[Row] = []
    for _ in range(pairs):
        workers = Worker(old), Worker(new)
        latest = [compared(cell, *workers, rounds) for cell in cells]
        rows = [a.with_times(b) for a, b in zip(rows, latest, strict=True)] if rows else latest
        for worker in workers:
            worker.end()
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = ["| cell | OLD, ms a sentence | NEW | OLD / NEW | outputs |", "|---|---|---|---|---|"]
    for row in rows:
        count = SENTENCES[row.cell.batch]
        times = [f"{1000 * sum(side) / count:.2f}" for side in (row.old, row.new)]
        equal = "equal" if row.equal else "DIFFERENT"
        lines.append(f"| {row.cell.name} | {times[0]} | {times[1]} | {row.ratio:.3f} | {equal} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", metavar="OLD", help="a commit")
    parser.add_argument(
        "new", metavar="NEW", nargs="?", default=WORKING_TREE, help="another; the working tree"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each cell in a pair of processes")
    parser.add_argument("--pairs", type=int, default=3, help="of processes, one after the other")
    parser.add_argument(
        "--cells", metavar="TEXT", default="", help="only cells with this in their names"
    )
    parser.add_argument(
        "--least", type=float, default=0.97, help="ratio that no cell may stay below"
    )
    parser.add_argument(
        "--output", type=Path, help="files of the result: OUTPUT.json and OUTPUT.md"
    )
    args = parser.parse_args()
    for name in ("rounds", "pairs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: it must be at least 1")
    cells = [cell for cell in CELLS if args.cells in cell.name]
    if not cells:
        parser.error(f"--cells {args.cells}: no cell has this in its name")
    from fairseq_aggdec.records import machine, results

    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    make_models()
    with tree_of(args.old) as old, tree_of(args.new) as new:
        rows = all_rows(cells, old, new, args.rounds, args.pairs)
    text = table(rows)
    print(text)
    if args.output is not None:
        header = {
            "command": machine.command("scripts.compare_commits", sys.argv[1:]),
            **machine.describe(),
        }
        found = [asdict(row) | {"ratio": row.ratio} for row in rows]
        results.write_text(results.named(args.output, ".md"), f"{text}\n\n{header['command']}\n")
        results.write_text(
            results.named(args.output, ".json"),
            json.dumps(header | {"cells": found}, indent=1) + "\n",
        )
    return int(any(not row.equal or row.ratio < args.least for row in rows))


if __name__ == "__main__":
    sys.exit(main())
