"""What a GPU is asked, in one command that ends in time.

    bash scripts/gpu_speed.sh --out FOLDER --seconds 540                     how fast: the profile "speed"
    bash scripts/gpu_speed.sh --out FOLDER --seconds 540 --profile checks    is it right: the profile "checks"
    bash scripts/gpu_speed.sh --out FOLDER --seconds 240 --profile papers    the papers' methods at base size, untrained
    bash scripts/gpu_speed.sh --out FOLDER --rehearse                        all of it, tiny, without a GPU

One worker process runs the stages of a profile, the most valuable first. Each may use its share of the time that is
left. A stage that fails is reported and the next one goes on; a worker that hangs or dies is replaced. Every row is
written to FOLDER/rows.jsonl as it comes, so nothing is lost when the machine is. FOLDER/PROFILE.json and .md have all
rows. Ends with 1 where a stage failed or something differs that must not.

First every kernel runs in a process of its own. What fails there, hangs or errs is switched off in the other stages; so
is every kernel of ours behind a stage that hung or lost the device. All of that is in the tables.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import fairseq_aggdec  # noqa: F401  (registers the models)
from fairseq_aggdec.kernels.switches import GPU_KERNELS
from fairseq_aggdec.records.results import check_place, refusals, write_table
from scripts.recipes import tables
from scripts.recipes.gpu import checks, papers, speed
from scripts.recipes.gpu.each_kernel import FAULTS, switch_off
from scripts.recipes.gpu.plan import Plan, Row, Stage

PROFILES: Mapping[str, Mapping[str, Stage]] = {
    "speed": speed.STAGES,
    "checks": checks.STAGES,
    "papers": papers.STAGES,
}
SECONDS = 540.0
GRACE = 20.0  # seconds that a stage may go on after its time, for the row that it is at
# The worker is forked from a process that has imported everything and never touches CUDA, which cannot be forked.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["scripts.recipes.gpu.run"])
ROWS, LOG = "rows.jsonl", "worker.log"
BEGUN, DONE, CUT = "begun", "done", "ended at its time"
# Columns of which every number must be 0.
NOTHING = ("differ", "BUGs")
# A row of a stage that a kernel has ended: whoever comes after it does without.
NO_KERNELS = {"kernels": "all", "is": "switched off", "off": "no-gpu"}
LOST = 3  # how a worker ends whose device does not answer any more


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="is made")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all stages together")
    parser.add_argument("--profile", choices=list(PROFILES), default="speed")
    stages = ", ".join(f"{name}: {' '.join(map(repr, of))}" for name, of in PROFILES.items())
    parser.add_argument("--stages", nargs="+", metavar="STAGE", help=f"only these ({stages})")
    parser.add_argument("--rehearse", action="store_true", help="tiny, without a GPU")
    parser.add_argument(
        "--faults",
        nargs="+",
        default=[],
        metavar="KERNEL=FAULT",
        help=f"of kernels in a rehearsal ({', '.join(FAULTS)})",
    )
    parser.add_argument("--data", help="binarised data of the models of --path")
    parser.add_argument("--path", nargs="+", default=[], metavar="FILE", help="models to audit")
    return parser


def share(left: float, stages: Sequence[str], of: Mapping[str, Stage]) -> float:
    """Seconds for the first of the stages, of those that are left: what its weight is of theirs."""
    return left * of[stages[0]].weight / sum(of[name].weight for name in stages)


def work(profile: str, names: Sequence[str], plan: Plan) -> None:
    """In a process of its own: runs stages, one after the other, and writes their rows."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()  # with the processes that it starts it can be ended
    with (plan.out / LOG).open("a", encoding="utf-8") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    logging.getLogger("fairseq_aggdec").setLevel(logging.WARNING)
    with (plan.out / ROWS).open("a", encoding="utf-8") as file:
        for place, name in enumerate(names):
            left = plan.end - time.monotonic()
            if left < 1:
                note(file, {"stage": name, "state": "not run: no time was left"})
                continue
            switch_off(all_rows(plan.out))
            # Weights are of a GPU: in a rehearsal a stage may take all that is left.
            most = left if plan.rehearse else share(left, names[place:], PROFILES[profile])
            until = time.monotonic() + most
            note(file, {"stage": name, "state": BEGUN, "until": until})
            state = run_stage(name, PROFILES[profile][name], plan, until, file)
            note(file, {"stage": name, "state": state, "at": time.monotonic()})
            if "CUDA error" in state:  # nothing can be asked of this process's device any more
                note(file, {"stage": name, "row": NO_KERNELS})
                sys.exit(LOST)


def run_stage(name: str, stage: Stage, plan: Plan, until: float, file: TextIO) -> str:
    """Writes the rows of a stage; how it ended."""
    try:
        for row in stage.rows(plan):
            note(file, {"stage": name, "row": row})
            print(
                "  " + ", ".join(f"{key} {tables.said(value)}" for key, value in row.items()),
                flush=True,
            )
            if time.monotonic() > until:
                return CUT
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"[:400]
    return DONE


def note(file: TextIO, line: Mapping[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()
    os.fsync(file.fileno())


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Stage -> its state, seconds and rows, as far as they are written."""
    found: dict[str, dict[str, Any]] = {}
    file = folder / ROWS
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:  # cut in the middle
            continue
        one = found.setdefault(line["stage"], {"state": BEGUN, "seconds": 0.0, "rows": []})
        if "row" in line:
            one["rows"].append(line["row"])
        else:
            one |= {key: value for key, value in line.items() if key != "stage"}
    return found


def all_rows(folder: Path) -> Iterator[Row]:
    """Gives the rows of all stages that are written."""
    for one in read_rows(folder).values():
        yield from one["rows"]


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within this, SIGTERM ends the program as an error does, so that no worker is left behind."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(args: argparse.Namespace, arguments: Sequence[str], folder: Path) -> int:
    end = time.monotonic() + args.seconds
    planted = tuple((name, kind) for name, _, kind in (one.partition("=") for one in args.faults))
    plan = Plan(folder, args.out, args.rehearse, args.data, tuple(args.path), end, planted)
    (args.out / ROWS).unlink(missing_ok=True)
    left = list(args.stages or PROFILES[args.profile])
    while left:
        process = PROCESSES.Process(target=work, args=(args.profile, left, plan), daemon=False)
        process.start()
        try:
            finished = watch(process, args, arguments, end)
        finally:  # an interrupted command leaves no worker behind
            kill(process)
        found = read_rows(args.out)
        left = [name for name in left if found.get(name, {"state": BEGUN})["state"] == BEGUN]
        if left and (not finished or left[0] in found):  # amid a stage no worker ends well
            close(args.out, left.pop(0), process.exitcode)
    found = write(args, arguments)
    bad = [name for name, one in found.items() if one["state"] not in (DONE, CUT) or faults(one)]
    print(f"{args.out / args.profile}.md and .json are written", flush=True)
    return int(bool(bad))


def watch(process: Any, args: argparse.Namespace, arguments: Sequence[str], end: float) -> bool:
    """Waits for a worker, writing the page as stages end; ends one that hangs. Whether it ended by itself, well."""
    ended = -1
    while process.is_alive():
        process.join(0.5)
        found = read_rows(args.out)
        states = [one["state"] for one in found.values()]
        if states.count(BEGUN) + ended + 1 < len(states):
            ended = len(states) - states.count(BEGUN) - 1
            write(args, arguments)
        begun = [one for one in found.values() if one["state"] == BEGUN]
        # Before its first stage and behind its last a worker may hang too.
        if time.monotonic() > (begun[-1].get("until", end) if begun else end) + GRACE:
            kill(process)
            break
    return process.exitcode in (0, LOST)


def kill(process: Any) -> None:
    """Ends a worker, if it is there, with the processes that it has started."""
    if process.is_alive():
        process.kill()
        with suppress(ProcessLookupError):  # it has had no time to become a group
            os.killpg(process.pid, signal.SIGKILL)
        process.join(GRACE)  # one that waits for a driver may never end


def close(folder: Path, name: str, code: int | None) -> None:
    """Says of a stage that its worker died in it."""
    log = folder / LOG
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    last = " ".join(text.strip().splitlines()[-1:])
    with (folder / ROWS).open("a", encoding="utf-8") as file:
        if code == -signal.SIGKILL and name != "rivals":  # it hung, as only the GPU does
            note(file, {"stage": name, "row": NO_KERNELS})
        note(file, {"stage": name, "state": f"failed: the worker ended ({code}): {last}"[:400]})


def faults(found: Mapping[str, Any]) -> int:
    """How many rows of a stage say that something failed or differs."""
    return sum("error" in row or any(row.get(name) for name in NOTHING) for row in found["rows"])


def page(found: Mapping[str, Mapping[str, Any]], stages: Mapping[str, Stage]) -> str:
    """All stages: an overview and a table of each."""
    overview = [
        {"stage": name, "state": one["state"], "rows": len(one["rows"]), "faults": faults(one)}
        for name, one in found.items()
    ]
    parts = [tables.of_rows(overview)]
    for name, one in found.items():
        what = (stages[name].rows.__doc__ or "").splitlines()[0]
        parts.append(f"## {name}\n\n{what}\n\n{tables.of_rows(one['rows'])}")
    return "\n\n".join(parts)


def write(args: argparse.Namespace, arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """FOLDER/PROFILE.json and .md with what has been found so far."""
    found = read_rows(args.out)
    title = f"A GPU, {args.profile}" + (" (rehearsed without one)" if args.rehearse else "")
    command = shlex.join(["bash", "scripts/gpu_speed.sh", *arguments])
    text = page(found, PROFILES[args.profile])
    write_table(args.out / args.profile, title, command, text, found)
    return found


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    known = PROFILES[args.profile]
    for name in args.stages or ():
        if name not in known:
            parser.error(f"--stages '{name}': the profile {args.profile} has {', '.join(known)}")
    for fault in args.faults:
        name, _, kind = fault.partition("=")
        if not args.rehearse or name not in GPU_KERNELS or kind not in FAULTS:
            wanted = f"KERNEL=FAULT, one of {', '.join(FAULTS)}, with --rehearse"
            parser.error(f"--faults '{fault}': {wanted}")
    if bool(args.path) != bool(args.data):
        raise SystemExit("error: --path and --data go together")
    if not args.seconds > 0:
        raise SystemExit(f"error: --seconds {args.seconds}: it must be above 0")
    args.out.mkdir(parents=True, exist_ok=True)
    check_place("--out", args.out / args.profile, ".json", ".md")


def main(given: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if given is None else given)
    parser = build_parser()
    args = parser.parse_args(arguments)
    with refusals(), tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        check(parser, args)
        with ended_by_signals():
            return run(args, arguments, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
