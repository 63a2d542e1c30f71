"""Models and their tables in one lease of a GPU: a base, what it writes, what learns from that, all measured.

    bash scripts/gpu_train.sh --prepare RAW                     on a CPU beforehand: subwords and binarised Multi30k
    bash scripts/gpu_train.sh --what pair --out FOLDER --seconds 540        on the machine with the GPU

A stage is one process, or several side by side. Trainings stop when the stage's share of the seconds is over; a
process that goes on is ended. Rows are kept as they come, in FOLDER/gpu-train-WHAT.json and .md. The same command goes
on where it was: what is whole in --work is kept. Models come back in half precision, in FOLDER, the smallest first;
large ones in parts (cat NAME-fp16.pt.* > NAME-fp16.pt). What finds no room there comes with the next run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.compat import load_checkpoint
from fairseq_aggdec.distill.drafter_training import bound
from fairseq_aggdec.records.results import check_place, refusals, write, write_table
from scripts.recipes import tables
from scripts.recipes.gpu_train.plan import SIZES, Job, MissingError, Plan, Row, Stage
from scripts.recipes.gpu_train.stages import WHAT

ROOT = Path(__file__).resolve().parents[3]
PREPARED = Path("work/gpu-train/prepared")
# Seconds of a training stage that fairseq needs to start and to write its checkpoint.
AROUND = 25.0
# What comes back from a lent machine, beside the rows: bytes of a file, bytes and files of one run.
PART, ROOM, FILES = 15 << 20, 60 << 20, 6
SIZE_OF = {"pair": "base"}  # others: small
DONE = "done"
LINES = 3  # of a log that say why a job failed


@dataclass
class Clock:
    """What is left of the seconds."""

    end: float

    @property
    def left(self) -> float:
        return self.end - time.monotonic()


def share(left: float, stages: Sequence[Stage]) -> float:
    """Seconds of the first of the stages: what its weight is of theirs."""
    return left * stages[0].weight / sum(stage.weight for stage in stages)


def start(job: Job, plan: Plan, seconds: float) -> subprocess.Popen[bytes]:
    """Starts a job."""
    arguments = list(job.arguments)
    if job.trains:
        arguments.append(f"--stop-time-hours={max(1.0, seconds - AROUND) / 3600}")
    with plan.log(job.name).open("wb") as log:
        return subprocess.Popen(
            [os.environ.get("PYTHON", sys.executable), *bound(job.module, arguments)[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,  # with its children it can be ended
        )


def finish(job: Job, process: subprocess.Popen[bytes], plan: Plan, left: float) -> str:
    """Waits for a job as long as may be; how it ended."""
    try:
        code = process.wait(max(0.0, left))
    except subprocess.TimeoutExpired:
        kill(process)
        return f"{job.name}: ended, its time was over"
    if code:
        lines = plan.log(job.name).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"{job.name}: failed ({code}): {' '.join(lines[-LINES:])}"[:600]
    if job.trains and plan.rehearse:
        round_weights(plan.checkpoint(job.name))
    plan.whole(job.name).touch()
    return DONE


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_stage(stage: Stage, plan: Plan, seconds: float) -> dict[str, Any]:
    """Runs a stage's jobs side by side; its state, seconds and rows."""
    began, states = time.monotonic(), []
    try:
        jobs = [job for job in stage.jobs(seconds) if not plan.whole(job.name).exists()]
    except MissingError as missing:
        return {"state": f"not run: {missing}", "seconds": 0.0, "rows": []}
    running = [(job, start(job, plan, seconds)) for job in jobs]
    try:
        for job, process in running:
            states.append(finish(job, process, plan, began + seconds - time.monotonic()))
    finally:
        for _, process in running:
            kill(process)
    faults = [state for state in states if state != DONE]
    state = "; ".join(faults) or (DONE if jobs else "kept")
    spent = round(time.monotonic() - began, 1)
    return {"state": state, "seconds": spent, "rows": rows_left(stage)}


def rows_left(stage: Stage) -> list[Row]:
    """Rows of a stage; of one that was ended those that are there: tables are written after every batch size."""
    try:
        return list(stage.rows())
    except FileNotFoundError:
        return []


def round_weights(path: Path) -> None:
    """A rehearsal's checkpoint as a training in bf16 leaves it, which a CPU cannot run."""
    halved(path, path, torch.bfloat16)


def halved(path: Path, place: Path, dtype: torch.dtype) -> None:
    """Writes a checkpoint with its weights in another precision and without the optimizer's state."""
    state = load_checkpoint(str(path))
    state["model"] = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in state["model"].items()
    }
    state["last_optimizer_state"] = None
    write(place, lambda partial: torch.save(state, partial))


def bring_back(plan: Plan, out: Path) -> tuple[list[str], list[str]]:
    """Copies the models in half precision, in parts that may come back, the smallest model first.

    A file in the folder of checkpoints says which parts a former run has brought of the same models.

    Returns:
        the parts that are brought now, and those that are left for the next run.
    """
    said = plan.work / "brought.json"
    before = json.loads(said.read_text()) if said.exists() else {}
    brought, waiting, room = {}, [], ROOM
    for whole in sorted(halves(plan), key=lambda file: (file.stat().st_size, file.name)):
        data = whole.read_bytes()
        digest, count = hashlib.sha256(data).hexdigest(), -(-len(data) // PART)
        for number in range(count):
            file = whole.name if count == 1 else f"{whole.name}.{number:02}"
            if before.get(file) == digest:
                continue
            part = data[number * PART : (number + 1) * PART]
            if len(brought) == FILES or len(part) > room:
                waiting.append(file)
                continue
            (out / file).write_bytes(part)
            brought[file], room = digest, room - len(part)
    said.write_text(json.dumps(before | brought))
    return list(brought), waiting


def halves(plan: Plan) -> Iterator[Path]:
    """A file in half precision of each model that is trained."""
    for path in plan.work.glob("*/checkpoint_last.pt"):
        whole = plan.work / f"{path.parent.name}-fp16.pt"
        if not whole.exists() or whole.stat().st_mtime < path.stat().st_mtime:
            halved(path, whole, torch.float16)
        yield whole


# -- tables


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    overview = [
        {"stage": name, "state": one["state"], "s": one["seconds"]} for name, one in found.items()
    ]
    parts = [tables.of_rows(overview)]
    parts += [
        f"## {name}\n\n{tables.of_rows(one['rows'])}" for name, one in found.items() if one["rows"]
    ]
    return "\n\n".join(parts)


# -- command line


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--what", choices=list(WHAT), default="pair", help="default: pair")
    add("--out", type=Path, required=True, metavar="FOLDER", help="of what comes back")
    add("--seconds", type=float, default=540.0, metavar="N", help="of all stages (540)")
    add("--data", type=Path, default=PREPARED / "data-de-en", metavar="FOLDER", help="binarised")
    add("--subwords", type=Path, metavar="FILE", help="sentencepiece model of the data")
    add("--work", type=Path, metavar="FOLDER", help="of checkpoints (work/gpu-train/WHAT)")
    add("--size", choices=list(SIZES), help="base for pair, else small")
    add("--rehearse", action="store_true", help="two updates of everything, tiny, on the CPU")
    return parser


def planned(args: argparse.Namespace) -> Plan:
    """What the options ask for, checked before anything begins."""
    if not args.seconds > 0:
        raise SystemExit(f"error: --seconds {args.seconds}: it must be above 0")
    if not args.data.is_dir():
        raise SystemExit(
            f"error: --data {args.data}: there is no such folder; make it by --prepare on a CPU"
        )
    if not args.rehearse and not torch.cuda.is_available():
        raise SystemExit("error: PyTorch finds no GPU: try --rehearse")
    check_place("--out", args.out / f"gpu-train-{args.what}", ".json", ".md")
    subwords = args.subwords or args.data.parent / "subwords" / "spm.model"
    if args.subwords and not subwords.is_file():
        raise SystemExit(f"error: --subwords {subwords}: there is no such file")
    size = "toy" if args.rehearse else args.size or SIZE_OF.get(args.what, "small")
    work = (args.work or Path("work/gpu-train") / args.what).absolute()
    work.mkdir(parents=True, exist_ok=True)
    return Plan(
        args.data.absolute(),
        work,
        SIZES[size],
        args.rehearse,
        subwords.absolute() if subwords.is_file() else None,
    )


def main(given: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if given is None else given)
    args = build_parser().parse_args(arguments)
    with refusals():
        clock = Clock(time.monotonic() + args.seconds)
        plan = planned(args)
        return run(args, arguments, plan, clock)


def run(args: argparse.Namespace, arguments: Sequence[str], plan: Plan, clock: Clock) -> int:
    """Runs all stages; 1 where one did not end as it should."""
    stages, found = WHAT[args.what](plan), {}
    command = shlex.join(["bash", "scripts/gpu_train.sh", *arguments])
    extra: dict[str, object] = {"size": vars(plan.size), "seconds": args.seconds}

    def keep() -> None:
        title = f"{'Rehearsal of a' if plan.rehearse else 'A'} training on a GPU: {args.what}"
        write_table(args.out / f"gpu-train-{args.what}", title, command, page(found), found, extra)

    for place, stage in enumerate(stages):
        if clock.left < 1:
            found[stage.name] = {"state": "not run: no time was left", "seconds": 0.0, "rows": []}
            continue
        # Weights are of a GPU: in a rehearsal a stage may take all that is left.
        seconds = clock.left if plan.rehearse else share(clock.left, stages[place:])
        found[stage.name] = run_stage(stage, plan, seconds)
        print(f"{stage.name}: {found[stage.name]['state']}, {clock.left:.0f} s left", flush=True)
        keep()
    extra["files"], extra["files of the next run"] = bring_back(plan, args.out)
    keep()
    return int(any(one["state"] not in (DONE, "kept") for one in found.values()))


if __name__ == "__main__":
    # What ends this command ends its jobs, which are in sessions of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
