"""Do the tests see faults of the engine? Each mutant is one of them, put into a copy of the package.

    python -m scripts.mutants --output docs/results/mutants

runs for each mutant the tests that should see it, in the order given, until one fails, and writes which one that was.
Exit status 1 if a mutant survives, or if the tests fail without any.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from fairseq_aggdec.records import machine, results
from fairseq_aggdec.records.results import write_table
from scripts.recipes import tables

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("fairseq_aggdec", "tests", "scripts", "configs", "pyproject.toml")
LOSSLESS, BEAM, BOARD = (
    f"tests/equality/test_{name}.py" for name in ("lossless", "beam", "beam_on_device")
)
TREES, CACHED = (f"tests/equality/test_{name}.py" for name in ("trees", "cached_decoder"))
RULES, TABLES = "tests/equality/test_rule_cases.py", "tests/unit/test_beam_tables.py"
ACCEPTANCE = "tests/unit/test_acceptance.py"


@dataclass(frozen=True)
class Mutant:
    """A fault: in ``file`` of the package ``old``, which stands there once, becomes ``new``."""

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    fault: str
    file: str
    killed_by: str | None


MUTANTS = [
    Mutant(
        *("keys are written one place too early", "engine/compiled.py"),
        "[*starts, *widths, *blocks, *tokens, *depths]",
        "[*(max(0, start - 1) for start in starts), *widths, *blocks, *tokens, *depths]",
        (CACHED, LOSSLESS),
    ),
    Mutant(
        *("a token sees the one behind it", "windows/window.py"),
        "places > places[",
        "places > 1 + places[",
        ("tests/unit/test_window.py", CACHED),
    ),
    Mutant(
        *("a hypothesis does not see its ancestors", "search/beam/board.py"),
        "sight.copy_(sight.gather(1, parents.unsqueeze(2).expand_as(sight)))",
        "pass",
        (BOARD,),
    ),
    Mutant(
        *("positions of a tree by place, not by depth", "windows/tree_window.py"),
        "return torch.add(table[self.depths]",
        "return torch.add(table[self.positions]",
        ("tests/unit/test_window.py", BEAM),
    ),
    Mutant(
        *("every drafted token stands", "search/acceptance.py"),
        "return choices == drafted",
        "return choices == choices",
        (ACCEPTANCE, LOSSLESS),
    ),
    Mutant(
        *("top-beta takes one more", "search/acceptance.py"),
        "(better < self.beta)",
        "(better <= self.beta)",
        (ACCEPTANCE,),
    ),
    Mutant(
        *("packed weights stay when training changes them", "engine/plain/watch.py"),
        "return self._moved() or not self.numbers.same()",
        "return False",
        ("tests/unit/test_watch.py", LOSSLESS, CACHED),
    ),
    Mutant(
        *("the cache of another row after sentences left", "engine/kv_cache.py"),
        "self.entries[:, new] = self.entries[:, old]",
        "self.entries[:, new] = self.entries[:, new]",
        (CACHED, LOSSLESS),
    ),
    Mutant(
        *("the padding of another row after sentences left", "engine/kv_cache.py"),
        "self.memory_mask[new] = self.memory_mask[old]",
        "self.memory_mask[new] = self.memory_mask[new]",
        (CACHED, LOSSLESS),
    ),
    Mutant(
        *("keys of an accepted path are not moved", "engine/verifier.py"),
        "        if kept.moved:\n",
        "        if False:\n",
        (TREES,),
    ),
    Mutant(
        *("the end is forced one token late", "search/rules.py"),
        "forced.masked_fill(outputs >= end, self.eos)",
        "forced.masked_fill(outputs > end, self.eos)",
        ("tests/equality/test_device_loop.py",),
    ),
    Mutant(
        *("outputs may end one token early", "search/rules.py"),
        "(at < floor)",
        "(at < floor - 1)",
        (RULES,),
    ),
    Mutant(
        *("the penalty of <unk> is a reward", "search/rules.py"),
        "logits.select(-1, self.unk).sub_(",
        "logits.select(-1, self.unk).add_(",
        (RULES,),
    ),
    Mutant(
        *("a bias that a norm carries is read as if it were not there", "engine/linear.py"),
        "own.detach().float() - shift.float() @ weight.float()",
        "own.detach().float()",
        ("tests/unit/test_linear.py",),
    ),
    Mutant(
        *("the first n-gram may be repeated", "search/rules.py"),
        "(places >= size - 2)",
        "(places >= size - 1)",
        (RULES,),
    ),
    Mutant(
        *("probabilities of an ensemble are averaged as logarithms", "engine/verifier.py"),
        "return torch.logsumexp(log_probs, dim=0) - math.log(len(outputs))",
        "return log_probs.mean(0)",
        (RULES,),
    ),
    Mutant(
        *("beam search: ends count among twice the beam", "search/beam/board.py"),
        "self._end(rows, best[:, :beam], parents[:, :beam], ending[:, :beam])",
        "self._end(rows, best, parents, ending)",
        ("tests/unit/test_beam_board.py", BOARD),
    ),
    Mutant(
        *("beam search: scores divided by a length without the end", "search/beam/library.py"),
        "options.score(total, len(tokens))",
        "options.score(total, max(1, len(tokens) - 1))",
        (BEAM,),
    ),
    Mutant(
        *("beam search: padding may be chosen", "search/beam/tables.py"),
        "log_probs[:, pad] = -torch.inf",
        "pass",
        (TABLES, BEAM),
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="TEXT", help="mutants whose fault has this in its name")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--output", type=Path, help="result files: OUTPUT.json and OUTPUT.md")
    args = parser.parse_args()
    results.check_counts(args, "jobs")
    results.check_place("--output", args.output, ".json", ".md")
    chosen = [mutant for mutant in MUTANTS if (args.only or "") in mutant.fault]
    if not chosen:
        raise SystemExit(f"error: --only {args.only}: no mutant is called so")
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(tqdm(pool.map(tried, chosen), total=len(chosen), unit="mutant"))
    table = markdown(found)
    print(table)
    if args.output:
        command = machine.command("scripts.mutants", sys.argv[1:])
        rows = [asdict(outcome) for outcome in found]
        write_table(args.output, "Faults that the tests see", command, table, rows)
    return int(any(outcome.killed_by is None for outcome in found))


def tried(mutant: Mutant) -> Outcome:
    """Runs a mutant's tests on a copy of the project that has its fault."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, copy / part, ignore=ignored)
            else:
                shutil.copy(source, copy / part)
        put_in(mutant, copy)
        return Outcome(mutant.fault, mutant.file, first_failure(copy, mutant.tests))


def put_in(mutant: Mutant, project: Path) -> None:
    """Writes the fault into a project.

    Raises:
        SystemExit: what it replaces does not stand there exactly once.
    """
    path = project / "fairseq_aggdec" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"error: {mutant.file} has {mutant.old!r} {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def first_failure(project: Path, tests: Sequence[str]) -> str | None:
    """The first test that fails, None if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
    environment = os.environ | {"PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None:
        raise SystemExit(f"error: the tests did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return failed.group(1)


def markdown(found: Sequence[Outcome]) -> str:
    rows = [
        (one.fault, f"`{one.file}`", f"`{one.killed_by}`" if one.killed_by else "**nothing**")
        for one in found
    ]
    return tables.table(["fault", "in", "seen by"], rows)


if __name__ == "__main__":
    sys.exit(main())
