"""What a GPU is asked, in one command that ends in time.

    bash scripts/gpu.sh --out FOLDER --seconds 540                       how fast: the profile "speed"
    bash scripts/gpu.sh --out FOLDER --seconds 540 --profile checks      is it right: the profile "checks"
    bash scripts/gpu.sh --out FOLDER --seconds 540 --profile train       a verifier, drafters and heads, their tables
    bash scripts/gpu.sh --out FOLDER --profile PROFILE --rehearse        the same, tiny, without a GPU

A profile has stages, the most valuable first. A stage is a command, or several side by side, and may use its share of
the time that is left. FOLDER/NAME.log is what a command prints. FOLDER/NAME.json and .md are what it has found, and it
writes them after every row, so nothing is lost when the machine is. FOLDER/PROFILE.json and .md tell how every stage
ended. The same command again goes on where it was. Ends with 1 where a stage failed.

Kernels are tried first, each in a process of its own, so none of them can stop what is behind. Where a later stage
loses the device all the same, no kernel of ours runs in the stages behind it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.distill.drafter_training import bound
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.records.results import check_place, refusals, write_table
from scripts.recipes import tables
from scripts.recipes.gpu.plan import ROOT, Job, MissingError, Plan, Stage
from scripts.recipes.gpu.profiles import PROFILES

SECONDS = 540.0
AROUND = 25.0  # seconds that fairseq-train needs to start and to write its checkpoint
DONE, KEPT, CUT, FAILED = "done", "kept", "ended at its time", "failed"
LOST = "CUDA error"  # in a log: the device of that process answers no more
TOLD = 3  # lines of a log that say why a job failed

Found = dict[str, dict[str, Any]]


def share(left: float, stages: Sequence[Stage]) -> float:
    """Seconds of the first of the stages: what its weight is of theirs."""
    return left * stages[0].weight / sum(stage.weight for stage in stages)


def run_stage(
    stage: Stage, plan: Plan, seconds: float, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Runs the jobs of a stage side by side.

    Returns:
        its state, its seconds, and the files of what it has found.
    """
    began, states = time.monotonic(), []
    try:
        planned = list(stage.jobs(seconds))
    except MissingError as missing:
        return {"state": f"not run: {missing}", "seconds": 0.0, "files": []}
    jobs = [job for job in planned if job.ended is None or not job.ended.exists()]
    running = [(job, start(job, plan, seconds, environment)) for job in jobs]
    try:
        for job, process in running:
            states.append(finish(job, process, plan, began + seconds - time.monotonic()))
    finally:
        for _, process in running:
            kill(process)
    state = "; ".join(one for one in states if one != DONE) or (DONE if jobs else KEPT)
    files = [path.name for job in planned if (path := plan.out / f"{job.name}.md").exists()]
    return {"state": state, "seconds": round(time.monotonic() - began, 1), "files": files}


def start(
    job: Job, plan: Plan, seconds: float, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a job, in a session of its own, so that it can be ended with its children."""
    arguments = list(job.arguments)
    if job.trains:
        arguments.append(f"--stop-time-hours={max(1.0, seconds - AROUND) / 3600}")
    own = os.environ.get("PYTHON", sys.executable)
    with plan.log(job.name).open("wb") as log:
        return subprocess.Popen(
            [*job.under, own, *bound(job.module, arguments)[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | environment,
            start_new_session=True,
        )


def finish(job: Job, process: subprocess.Popen[bytes], plan: Plan, left: float) -> str:
    """Waits for a job as long as may be; how it ended."""
    try:
        code = process.wait(max(0.0, left))
    except subprocess.TimeoutExpired:
        kill(process)
        return f"{job.name}: {CUT}"
    if code:
        lines = plan.log(job.name).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"{job.name}: {FAILED} ({code}): {' '.join(lines[-TOLD:])}"[:600]
    if job.ended is not None:
        job.ended.touch()
    return DONE


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(args: argparse.Namespace, plan: Plan, command: str) -> int:
    """Runs all stages; 1 where one failed."""
    end, found = time.monotonic() + args.seconds, Found()
    environment: dict[str, str] = {"XDG_CACHE_HOME": str(plan.work)} if plan.rehearse else {}
    stages = [one for one in PROFILES[args.profile](plan) if one.name in (args.stages or one.name)]
    for place, stage in enumerate(stages):
        left = end - time.monotonic()
        if left < 1:
            found[stage.name] = {"state": "not run: no time was left", "seconds": 0.0, "files": []}
            continue
        # Weights are of a GPU: in a rehearsal a stage may take all that is left.
        seconds = left if plan.rehearse else share(left, stages[place:])
        found[stage.name] = one = run_stage(stage, plan, seconds, environment)
        if LOST in one["state"]:
            environment[VARIABLE] = "no-gpu"
            one["state"] += f" ({VARIABLE}=no-gpu from here on)"
        print(
            f"{stage.name}: {one['state']}, {end - time.monotonic():.0f} s left",
            flush=True,
        )
        keep(args, plan, command, found)
    return int(any(FAILED in one["state"] for one in found.values()))


def keep(args: argparse.Namespace, plan: Plan, command: str, found: Found) -> None:
    """FOLDER/PROFILE.json and .md with what has ended so far."""
    title = f"A GPU, {args.profile}" + (" (rehearsed without one)" if plan.rehearse else "")
    rows = [
        {"stage": name, "state": one["state"], "s": one["seconds"], "files": " ".join(one["files"])}
        for name, one in found.items()
    ]
    write_table(args.out / args.profile, title, command, tables.of_rows(rows), found)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="of what is found")
    add("--seconds", type=float, default=SECONDS, metavar="N", help="of all stages (540)")
    add("--profile", choices=list(PROFILES), default="speed")
    add("--stages", nargs="+", metavar="STAGE", help="only these")
    add("--rehearse", action="store_true", help="tiny, without a GPU")
    add("--work", type=Path, default=Path("work/gpu"), metavar="FOLDER", help="of models")
    add("--data", type=Path, metavar="FOLDER", help="binarised data: of --path, or to train on")
    add("--path", metavar="FILE", help="a model to audit")
    return parser


def planned(args: argparse.Namespace) -> Plan:
    """What the options ask for, checked before anything begins."""
    if not args.seconds > 0:
        raise SystemExit(f"error: --seconds {args.seconds}: it must be above 0")
    if args.path and not args.data:
        raise SystemExit("error: --path needs --data")
    if not args.rehearse and not torch.cuda.is_available():
        raise SystemExit("error: PyTorch finds no GPU: try --rehearse")
    check_place("--out", args.out / args.profile, ".json", ".md")
    work = args.work.absolute() / ("rehearsal" if args.rehearse else "models")
    for folder in (args.out, work):
        folder.mkdir(parents=True, exist_ok=True)
    data = args.data or args.work / "prepared" / "data-de-en"
    if args.profile == "train" and not data.is_dir():
        raise SystemExit(f"error: --data {data}: there is no such folder; --prepare makes it")
    plan = Plan(args.out.absolute(), work, args.rehearse, data.absolute(), args.path)
    known = [stage.name for stage in PROFILES[args.profile](plan)]
    for name in args.stages or ():
        if name not in known:
            raise SystemExit(
                f"error: --stages '{name}': {args.profile} has {', '.join(map(repr, known))}"
            )
    return plan


def main(given: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if given is None else given)
    args = build_parser().parse_args(arguments)
    # What ends this command ends its jobs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with refusals():
        return run(args, planned(args), shlex.join(["bash", "scripts/gpu.sh", *arguments]))


if __name__ == "__main__":
    sys.exit(main())
