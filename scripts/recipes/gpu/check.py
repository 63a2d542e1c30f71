"""Everything that a first GPU is to be asked, in one command of at most nine minutes.

    bash scripts/gpu_check.sh --wheels FOLDER --output gpu-check        on a machine with a GPU, its PyTorch, no index
    bash scripts/gpu_check.sh --rehearse                                all of it, tiny, without a GPU, in two minutes

decodes with every method on the device and compares with stock fairseq on the CPU, audits the shipped model (and those
of --path, on the set "test" of --data) in fp32, fp16 and bf16, times systems, counts kernels, copies and waits, and
measures windows and memory. A stage runs in a process of its own: one that fails or hangs is reported and the next one
goes on. The stages share the time by weights; what one leaves over is for those after it. Rows are kept as they come.
Writes OUTPUT.json and OUTPUT.md; ends with 1 where a stage failed or something differs that must not.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fairseq_aggdec  # noqa: F401  (registers the models)
from fairseq_aggdec.records.results import cell, check_place, refusals, write_table
from scripts.recipes.gpu.plan import Plan, Row
from scripts.recipes.gpu.stages import STAGES

MINUTES = 8.5  # of nine: installing the wheels and importing PyTorch come before
# Stages are forked from a process that has imported everything and never touches CUDA, which could not be forked.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["scripts.recipes.gpu.stages"])
LOG = "stage.log"
# Columns of which every number must be 0.
NOTHING = ("differ", "BUGs")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny, without a GPU")
    parser.add_argument("--data", help="binarised data of the models of --path")
    parser.add_argument("--path", nargs="+", default=[], metavar="FILE", help="models to audit")
    parser.add_argument(
        "--stages", nargs="+", choices=list(STAGES), default=list(STAGES), metavar="STAGE"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of all stages together")
    parser.add_argument(
        "--output", type=Path, default=Path("gpu-check"), help="OUTPUT.json, OUTPUT.md"
    )
    return parser


def run_stage(name: str, plan: Plan) -> None:
    """In a process of its own: writes the rows of a stage to its file as they come, what is logged to another."""
    os.setsid()  # with the processes that it starts it can be ended
    with (plan.folder / LOG).open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    with rows_file(plan.folder, name).open("w", encoding="utf-8") as file:
        for row in STAGES[name][0](plan):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(
                "  " + ", ".join(f"{key} {said(value)}" for key, value in row.items()), flush=True
            )


def rows_file(folder: Path, name: str) -> Path:
    return folder / f"rows-{name.replace(' ', '-')}.jsonl"


def stage(name: str, plan: Plan, seconds: float) -> dict[str, Any]:
    """Runs a stage; what it found, whether it ended well, and how long it took."""
    began = time.monotonic()
    process = PROCESSES.Process(target=run_stage, args=(name, plan), daemon=True)
    process.start()
    process.join(seconds)
    state = "done"
    if process.is_alive():
        state = f"ended after {seconds:.0f} s"
        process.kill()
        with suppress(ProcessLookupError):  # it has had no time to become a group
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    elif process.exitcode:
        log = plan.folder / LOG
        said = log.read_text(encoding="utf-8") if log.exists() else ""
        state = f"failed ({process.exitcode}): {' '.join(said.strip().splitlines()[-1:])}"[:400]
    file = rows_file(plan.folder, name)
    rows = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = [json.loads(row) for row in rows if row.endswith("}")]
    return {"state": state, "seconds": round(time.monotonic() - began, 1), "rows": found}


def share(left: float, stages: Sequence[str]) -> float:
    """Seconds that the first of so many stages gets of those that are left: what its weight is of theirs."""
    return left * STAGES[stages[0]][1] / sum(STAGES[name][1] for name in stages)


def faults(found: dict[str, Any]) -> int:
    """How many rows of a stage say that something failed or differs."""
    return sum("error" in row or any(row.get(name) for name in NOTHING) for row in found["rows"])


def said(value: Any) -> str:
    """A number as it is read best; nothing for None."""
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-2 else f"{value:.2f}"
    return "" if value is None else str(value)


def table(rows: Sequence[Row]) -> str:
    """Markdown, a column for every name that any row has."""
    if not rows:
        return "Nothing was found."
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(cell(said(row.get(name))) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def page(found: dict[str, dict[str, Any]]) -> str:
    """All stages: an overview and a table of each."""
    overview = [
        {"stage": name, "state": one["state"], "seconds": one["seconds"], "faults": faults(one)}
        for name, one in found.items()
    ]
    parts = [table(overview)]
    for name, one in found.items():
        what = (STAGES[name][0].__doc__ or "").splitlines()[0]
        parts.append(f"## {name}\n\n{what}\n\n{table(one['rows'])}")
    return "\n\n".join(parts)


def check(args: argparse.Namespace) -> None:
    if bool(args.path) != bool(args.data):
        raise SystemExit("error: --path and --data go together")
    if not args.minutes > 0:
        raise SystemExit(f"error: --minutes {args.minutes}: it must be above 0")
    check_place("--output", args.output, ".json", ".md")


def main(given: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if given is None else given)
    args = build_parser().parse_args(arguments)
    with refusals(), tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        check(args)
        return run(args, arguments, Path(folder))


def run(args: argparse.Namespace, arguments: list[str], folder: Path) -> int:
    plan = Plan(folder, args.rehearse, args.data, tuple(args.path))
    end, found = time.monotonic() + 60 * args.minutes, {}
    for place, name in enumerate(args.stages):
        left = end - time.monotonic()
        if left < 1:
            found[name] = {"state": "not run: no time was left", "seconds": 0.0, "rows": []}
            continue
        print(f"{name} ({left:.0f} s left)", flush=True)
        # Weights are of a GPU: in a rehearsal a stage may take all that is left.
        most = left if args.rehearse else share(left, args.stages[place:])
        found[name] = stage(name, plan, most)
        print(f"{name}: {found[name]['state']}, {faults(found[name])} faults", flush=True)
        write(args, arguments, found)
    write(args, arguments, found)
    bad = any(one["state"] != "done" or faults(one) for one in found.values())
    print(f"{args.output}.md and .json are written", flush=True)
    return int(bad)


def write(
    args: argparse.Namespace, arguments: Sequence[str], found: dict[str, dict[str, Any]]
) -> None:
    title = "Rehearsal of the check on a GPU" if args.rehearse else "Check on a GPU"
    command = shlex.join(["bash", "scripts/gpu_check.sh", *arguments])
    write_table(args.output, title, command, page(found), found)


if __name__ == "__main__":
    sys.exit(main())
