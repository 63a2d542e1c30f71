"""Do the tests see faults of the engine? Each mutant is one of them, put into a copy of the package.

    python -m scripts.mutants --output docs/results/mutants

runs for each mutant the tests that should see it, in the order given, until one fails, and writes which one that was.
A mutant of the compiled kernels is compiled, for AVX2 alone, into a folder that these tests read with ``--kernels``.
Exit status 1 if a mutant survives, or if the tests fail without any.
"""

import argparse
import functools
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from unittest import mock

from tqdm import tqdm

from fairseq_aggdec.kernels import library
from fairseq_aggdec.records import machine, results
from fairseq_aggdec.records.results import write_table
from scripts.kernel_faults import SOURCE, Mutant
from scripts.mutant_faults import MUTANTS
from scripts.recipes import tables

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("fairseq_aggdec", "tests", "scripts", "configs", "pyproject.toml")
INSTRUCTIONS = "avx2"  # that mutants of the kernels are compiled for


@dataclass(frozen=True)
class Outcome:
    fault: str
    file: str
    killed_by: str | None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", metavar="TEXT", help="mutants whose fault or file has this in its name"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--output", type=Path, help="result files: OUTPUT.json and OUTPUT.md")
    args = parser.parse_args()
    results.check_counts(args, "jobs")
    results.check_place("--output", args.output, ".json", ".md")
    chosen = [mutant for mutant in MUTANTS if (args.only or "") in f"{mutant.file}: {mutant.fault}"]
    if not chosen:
        raise SystemExit(f"error: --only {args.only}: no mutant is called so")
    if failed := seen_by_fault_free(chosen):
        raise SystemExit(f"error: {failed} fails without a fault")
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
    """Runs a mutant's tests and prints what sees it."""
    outcome = Outcome(mutant.fault, mutant.file, seen_by(mutant))
    tqdm.write(f"{outcome.fault}: {outcome.killed_by}", file=sys.stderr)
    return outcome


def seen_by_fault_free(mutants: Sequence[Mutant]) -> str | None:
    """The first of the mutants' tests that fails without a fault, in kernels that are compiled as theirs are."""
    for of_kernels in (True, False):
        chosen = [mutant for mutant in mutants if mutant.file.startswith(SOURCE) == of_kernels]
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        with tempfile.TemporaryDirectory(prefix="no-mutant-") as folder:
            options = ["--kernels", str(compiled(None, Path(folder)))] if of_kernels else []
            if tests and (failed := first_failure(ROOT, [*options, *tests])):
                return failed
    return None


def seen_by(mutant: Mutant) -> str | None:
    """The first test that fails on a copy of the project, or on kernels, that have a mutant's fault; None for none."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        if mutant.file.startswith(SOURCE):
            options = ["--kernels", str(compiled(mutant, copy))]
            return first_failure(ROOT, [*options, *mutant.tests])
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, copy / part, ignore=ignored)
            else:
                shutil.copy(source, copy / part)
        put_in(mutant, copy)
        return first_failure(copy, mutant.tests)


_compiling = Lock()


def compiled(mutant: Mutant | None, folder: Path) -> Path:
    """A folder with the plain kernels, which have no fault, and those for AVX2, which have that of a mutant.

    They carry the digest of the sources without it, so that the package takes them. What does not include the file of
    the fault is compiled once for all mutants.
    """
    sources, kernels = folder / "fairseq_aggdec" / SOURCE, folder / "compiled"
    shutil.copytree(ROOT / "fairseq_aggdec" / SOURCE, sources)
    kernels.mkdir()
    faulty = None
    if mutant is not None:
        put_in(mutant, folder)
        faulty = (folder / "fairseq_aggdec" / mutant.file).resolve()
    objects = []
    for source in sorted(sources.rglob("*.cpp")):
        if faulty is not None and faulty in included(source):
            objects.append(kernels / f"{source.stem}.o")
            compile_source(source, objects[-1])
        else:
            with _compiling:
                objects.append(without_fault(source.relative_to(sources)))
    subprocess.run(
        [*compiler(), "-shared", *objects, "-o", kernels / f"_{INSTRUCTIONS}.so"], check=True
    )
    shutil.copy(library.FOLDER / "_plain.so", kernels)
    return kernels


def compiler() -> list[str]:
    return os.environ.get("CXX", "g++").split()


def included(source: Path) -> set[Path]:
    """The files that a source includes, itself among them."""
    command = [*compiler(), *flags(), "-MM", str(source)]
    rule = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {Path(name).resolve() for name in rule.replace("\\\n", " ").split()[1:]}


@functools.cache
def flags() -> list[str]:
    """What setup.py compiles with, but for the optimisation, which takes most of the time."""
    with mock.patch("setuptools.setup"), mock.patch.object(sys, "argv", ["setup.py"]):
        names = runpy.run_path(str(ROOT / "setup.py"))
    common = [flag for flag in names["FLAGS"] if flag != "-O3"]
    return [
        "-O1",
        "-fPIC",
        *common,
        *names["KERNELS"][INSTRUCTIONS],
        f'-DAGGDEC_DIGEST="{library.digest()}"',
    ]


def compile_source(source: Path, output: Path) -> None:
    subprocess.run([*compiler(), *flags(), "-c", str(source), "-o", str(output)], check=True)


@functools.cache
def without_fault(source: Path) -> Path:
    """The object of a source as it is, compiled once."""
    output = Path(objects_folder().name, f"{source.stem}.o")
    compile_source(ROOT / "fairseq_aggdec" / SOURCE / source, output)
    return output


@functools.cache
def objects_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="objects-")  # gone when Python ends


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
    if done.returncode < 0:
        return f"the end of the process by signal {-done.returncode}"
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None:
        raise SystemExit(f"error: the tests did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return failed.group(1)


def markdown(found: Sequence[Outcome]) -> str:
    rows = [
        (one.fault, f"`{one.file}`", f"`{one.killed_by}`" if one.killed_by else "**nothing**")
        for one in found
    ]
    beside = "Those of a GPU's kernels: [gpu-mutants.md](gpu-mutants.md)."
    return f"{beside}\n\n{tables.table(['fault', 'in', 'seen by'], rows)}"


if __name__ == "__main__":
    sys.exit(main())
