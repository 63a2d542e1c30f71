"""What a GPU is asked, rehearsed: every stage runs, one that fails does not end the others, no row is lost."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_aggdec.kernels.gpu.nvrtc import Module
from fairseq_aggdec.kernels.switches import VARIABLE
from scripts.recipes import tables
from scripts.recipes.gpu import run as gpu_run
from scripts.recipes.gpu import speed
from scripts.recipes.gpu.each_kernel import launches
from scripts.recipes.gpu.plan import Plan, Row, Rows, Stage
from scripts.recipes.gpu.run import BEGUN, CUT, DONE, PROFILES, ROWS
from tests.strict.device.cases import CASES

ROOT = Path(__file__).resolve().parents[2]


def rehearsed(folder: Path, profile: str) -> dict[str, Any]:
    assert gpu_run.main(["--rehearse", "--out", str(folder), "--profile", profile]) == 0
    found: dict[str, Any] = json.loads((folder / f"{profile}.json").read_text())["results"]
    assert list(found) == list(PROFILES[profile])
    assert {one["state"] for one in found.values()} == {DONE}
    assert all(one["rows"] for one in found.values())
    text = (folder / f"{profile}.md").read_text()
    assert all(f"## {name}" in text for name in found)
    return found


def test_rehearsal_of_checks(device: torch.device, tmp_path: Path) -> None:
    if device.type == "cuda":
        pytest.skip("a rehearsal is for machines without a GPU")
    found = rehearsed(tmp_path / "out", "checks")
    methods = {case.decoding for case in CASES}
    for stage in ("equality", "counts"):
        named = {row.get("case", row.get("method")) for row in found[stage]["rows"]}
        assert {case.decoding for case in CASES if case.name in named} == methods


def test_rehearsal_of_speed(device: torch.device, tmp_path: Path) -> None:
    if device.type == "cuda":
        pytest.skip("a rehearsal is for machines without a GPU")
    found = rehearsed(tmp_path / "out", "speed")
    cells = found["base size, fp16"]["rows"]
    assert {"ours, GAD", "ours, blockwise", "fairseq beam 5"} <= {row["system"] for row in cells}
    ours = [row for row in cells if row["system"] in ("ours, IAD", "ours, GAD", "ours, blockwise")]
    assert all(row["tokens / iteration"] > 3 for row in ours)  # drafts were replayed
    assert [row["until"] for row in found["cold start"]["rows"]][-1] == "sentence 4 is written"
    assert all(row["graphs, ms"] and row["no graphs, ms"] for row in found["graphs"]["rows"])
    asked = {(row["choice"], row["value"]) for row in found["choices"]["rows"]}
    assert asked == {(one.what, value) for one in speed.CHOICES for value in one.values}


def test_choices_begin_with_what_is_used() -> None:
    for _, places, values, _ in speed.CHOICES:
        assert {getattr(module, name) for module, name in places} == {values[0]}


def test_rehearsal_of_papers(device: torch.device, tmp_path: Path) -> None:
    if device.type == "cuda":
        pytest.skip("a rehearsal is for machines without a GPU")
    found = rehearsed(tmp_path / "out", "papers")
    steps = {
        row["system"]: row["tokens / iteration"]
        for stage in list(found.values())[1:4]
        for row in stage["rows"]
        if row["batch"] == 1
    }
    assert steps["(1, 1), beam 4"] == 1 and steps["(2, 2), beam 4"] > steps["(2, 1), beam 4"] > 1.8
    assert steps["scorer of 1, N = 64"] == 25
    assert steps["k = 10, 6 tokens an iteration"] == 5  # replayed: 1, then 6, 6, 6, 6
    # Heads are lossless; models of the other stages are others.
    assert all(row["other than first"] == 0 for row in found["block heads"]["rows"])
    assert {"GAD", "GAD++", "fairseq beam 5"} <= {
        row["system"] for row in found["memory at base size"]["rows"]
    }


def made_up(folder: Path, seconds: float, monkeypatch: pytest.MonkeyPatch, **stages: Any) -> Plan:
    """A plan of a profile that has these stages only, each of the weight 1."""
    made = {name: Stage(rows, 1) for name, rows in stages.items()}
    monkeypatch.setattr(gpu_run, "PROFILES", {"made up": made})
    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    return Plan(folder, folder, end=time.monotonic() + seconds)


def test_a_stage_that_fails_or_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker, in this process; the clock is made up."""
    clock = [time.monotonic()]
    monkeypatch.setattr(gpu_run.time, "monotonic", lambda: clock[0])

    def fails(plan: Plan) -> Rows:
        yield {"a": 1}
        raise ValueError("no such kernel")

    def endless(plan: Plan) -> Rows:
        while True:
            clock[0] += 10
            yield {"b": 2}

    def good(plan: Plan) -> Rows:
        yield {"differ": 0}

    plan = made_up(tmp_path, 100, monkeypatch, fails=fails, endless=endless, good=good)
    gpu_run.work("made up", ["fails", "endless", "good"], plan)
    found = gpu_run.read_rows(tmp_path)
    assert found["fails"]["state"] == "failed: ValueError: no such kernel"
    assert found["fails"]["rows"] == [{"a": 1}]
    assert found["endless"]["state"] == CUT  # after half of what was left
    assert len(found["endless"]["rows"]) == 6
    assert found["good"]["state"] == DONE
    clock[0] += 100
    gpu_run.work("made up", ["good"], plan)
    assert gpu_run.read_rows(tmp_path)["good"]["state"] == "not run: no time was left"


def test_a_device_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends, for another process to go on with the rest."""

    def breaks(plan: Plan) -> Rows:
        yield {"a": 1}
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    plan = made_up(tmp_path, 100, monkeypatch, breaks=breaks, next=breaks)
    with pytest.raises(SystemExit) as ended:
        gpu_run.work("made up", ["breaks", "next"], plan)
    assert ended.value.code == gpu_run.LOST
    found = gpu_run.read_rows(tmp_path)
    assert list(found) == ["breaks"] and found["breaks"]["state"].startswith("failed: RuntimeError")


def test_a_worker_that_dies(tmp_path: Path) -> None:
    """What it was at is said to have failed; a row that was cut in the middle is no row."""
    with (tmp_path / ROWS).open("w") as file:
        gpu_run.note(file, {"stage": "windows", "state": BEGUN, "until": 0.0})
        gpu_run.note(file, {"stage": "windows", "row": {"a": 1}})
        file.write('{"stage": "windows", "row": {"a"\n{"stage": "windows", "row": {"a": 2}\n')
    (tmp_path / gpu_run.LOG).write_text("first\nout of memory\n")
    gpu_run.close(tmp_path, "windows", -9)
    (found,) = gpu_run.read_rows(tmp_path).values()
    assert found["state"] == "failed: the worker ended (-9): out of memory"
    assert found["rows"] == [{"a": 1}, gpu_run.NO_KERNELS]  # it was ended, as one that hangs is


class Hanging:
    """A worker that has begun no stage, or ended all, and does not end."""

    exitcode, pid = None, 2**22 + 1  # of no process

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, seconds: float | None = None) -> None:
        pass

    def kill(self) -> None:
        self.exitcode = -9


def test_a_worker_that_hangs_outside_of_stages_is_ended(tmp_path: Path) -> None:
    args, worker = argparse.Namespace(out=tmp_path, profile="speed"), Hanging()
    long_ago = time.monotonic() - gpu_run.GRACE - 1
    assert not gpu_run.watch(worker, args, [], long_ago)
    assert worker.exitcode == -9


def processes_of(parent: int) -> list[int]:
    """All that a process has started, and all that these have."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                child = int(status.parent.name)
                found += [child, *processes_of(child)]
    return found


# In place of the environment's Python: the real program, with one stage, which never ends.
ENDLESS = """
import multiprocessing, sys, time
from scripts.recipes.gpu import run
from scripts.recipes.gpu.plan import Stage

def endless(plan):
    yield {"a": 1}
    time.sleep(600)

run.PROFILES = {"speed": {"endless": Stage(endless, 1)}}
run.PROCESSES = multiprocessing.get_context("fork")
run.write = lambda *_: {}
sys.exit(run.main(["--out", sys.argv[1], "--rehearse"]))
"""


def test_who_ends_the_script_ends_its_worker(tmp_path: Path) -> None:
    # A tree of its own, which sets nothing up.
    (tmp_path / "scripts").mkdir()
    for name in ("gpu_speed.sh", "gpu_python.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "scripts" / "setup.sh").write_text("")
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "{tmp_path}"\n')
    python.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = ["bash", str(tmp_path / "scripts" / "gpu_speed.sh"), "--out", str(tmp_path)]
    script = subprocess.Popen(command, env=environment)
    try:
        while not gpu_run.read_rows(tmp_path).get("endless", {}).get("rows"):
            assert script.poll() is None
            time.sleep(0.1)
        below = processes_of(script.pid)
        assert len(below) == 2  # the program and its worker
    finally:
        script.terminate()
    assert script.wait(60) == 128 + signal.SIGTERM
    until = time.monotonic() + 30
    while any(Path(f"/proc/{process}").exists() for process in below):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_kernels_that_fail_are_switched_off(tmp_path: Path) -> None:
    """One crashes, one hangs, one errs, one does not compile: the tables say so, and all other stages do without."""
    faults = {"copy_block": "crash", "slots": "hang", "largest": "wrong", "leaders": "compiler"}
    given = ["--rehearse", "--stages", "every kernel", "versions", "--profile", "checks"]
    given += ["--out", str(tmp_path), "--faults", *map("=".join, faults.items())]
    assert gpu_run.main(given) == 1
    found = json.loads((tmp_path / "checks.json").read_text())["results"]
    assert {one["state"] for one in found.values()} == {DONE}
    rows = found["every kernel"]["rows"]
    errors = {row["off"].removeprefix("no-"): row["error"] for row in rows if "error" in row}
    said = {
        "copy_block": f"the process ended with {-signal.SIGSEGV}",
        "slots": "it hangs",
        "dependent": "it hangs",  # it is tried with slots
        "largest": "it differs",
        "leaders": "does not compile",
        "beam_step": "does not compile",  # it is tried with leaders
        "best_step": "does not compile",
    }
    assert set(errors) == set(said) and all(said[name] in errors[name] for name in said)
    assert {row["is"] for row in rows if "error" not in row} == {"right"} and len(rows) > 12
    (switched,) = (row["is"] for row in found["versions"]["rows"] if row["what"] == VARIABLE)
    assert set(switched.split(",")) == {f"no-{name}" for name in said}
    assert "it hangs" in (tmp_path / "checks.md").read_text()


def test_rows_name_the_kernels_that_ran() -> None:
    launch = mock.Mock()
    with mock.patch.object(Module, "launch", launch), launches() as names:
        for name in ("look", "judge", "look"):
            Module.launch(mock.Mock(), name, b"", 1, 32)
    assert names == {"look", "judge"} and launch.call_count == 3


def test_what_is_a_fault() -> None:
    rows: list[Row] = [{"differ": 0, "BUGs": 0}, {"differ": 2}, {"BUGs": 1}, {"error": "x"}]
    assert gpu_run.faults({"rows": [*rows, {"ties": 3}]}) == 3
    table = tables.of_rows([{"a": 1.5, "b": None}, {"c": 2e-6}])
    assert table.splitlines() == [
        "| a | b | c |",
        "|---|---|---|",
        "| 1.50 |  |  |",
        "|  |  | 2.0e-06 |",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--wheels", "nowhere"], "there is no such folder"),
        (["--wheels", "docs"], "there are no wheels"),
        (["--path", "model.pt"], "--path and --data go together"),
        (["--seconds", "0"], "it must be above 0"),
        (["--faults", "look"], "--faults 'look': KERNEL=FAULT, one of crash"),
        (["--stages", "audits"], "the profile speed has every kernel"),
    ],
)
def test_refusals(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--out", str(tmp_path / "out"), "--rehearse", *options]
    if "--wheels" in options:
        done = subprocess.run(
            ["bash", "scripts/gpu_speed.sh", *given],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "BASE_PYTHON": str(ROOT / ".venv" / "bin" / "python")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0 and says in done.stderr
        return
    with pytest.raises(SystemExit) as ended:
        gpu_run.main(given)
    assert says in f"{ended.value.code} {capsys.readouterr().err}"
