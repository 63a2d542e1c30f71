"""What a GPU is asked, rehearsed: every stage runs, one that fails does not end the others, what is found is kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_aggdec.kernels.gpu.nvrtc import Module
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.stored.loading import load_checkpoint
from scripts import random_models
from scripts.recipes.gpu import halves, profiles, run, training
from scripts.recipes.gpu.plan import Job, MissingError, Plan, Stage
from scripts.recipes.gpu.replayed import launches
from tests import warm
from tests.cli.test_multi30k_recipes import SETTINGS
from tests.cli.wmt_files import recipe, write_multi30k

ROOT = Path(__file__).resolve().parents[2]
NONE: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarised data beside its subwords, as --prepare makes them."""
    folder = tmp_path_factory.mktemp("prepared")
    write_multi30k(folder / "raw")
    settings = SETTINGS | {"WORK": str(folder / "work"), "MAX_UPDATE": "0"}
    result = recipe("multi30k", str(folder / "raw"), **settings)
    assert result.returncode == 0, result.stderr[-2000:]
    return folder / "work" / "data-de-en"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs begin with everything imported."""
    monkeypatch.setenv("PYTHON", warm.python())


def plan_of(data: Path, folder: Path, rehearse: bool = True) -> Plan:
    for name in ("out", "work"):
        (folder / name).mkdir(exist_ok=True)
    return Plan(folder / "out", folder / "work", rehearse, data)


def rehearse(folder: Path, profile: str, *more: str) -> dict[str, str]:
    """Stage -> state of a rehearsal."""
    given = ["--rehearse", "--profile", profile, "--out", str(folder / "out"), "--seconds", "1800"]
    code = run.main([*given, "--work", str(folder / "work"), *more])
    assert (folder / "out" / f"{profile}.md").exists()
    found = json.loads((folder / "out" / f"{profile}.json").read_text())["results"]
    assert code == 0, found
    return {name: one["state"] for name, one in found.items()}


def rows_of(folder: Path, name: str) -> Any:
    return json.loads((folder / "out" / f"{name}.json").read_text())["results"]


def test_speed(tmp_path: Path) -> None:
    chosen = ["kernels", "floors", "base", "adding", "graphs"]
    assert rehearse(tmp_path, "speed", "--stages", *chosen) == dict.fromkeys(chosen, run.DONE)
    rows = {row["system"]: row for row in rows_of(tmp_path, "base")}
    assert {"ours, GAD", "ours, blockwise", "fairseq beam 5"} <= rows.keys()
    for name in ("ours, IAD", "ours, GAD", "ours, blockwise"):
        assert rows[name]["tokens / iteration"] > 3  # drafts were replayed
    added = [row["added"] for row in rows_of(tmp_path, "adding")]
    assert added[0] == "nothing" and added[-1] == "dependent launches"
    again = rehearse(tmp_path, "speed", "--stages", *chosen)
    assert again == dict.fromkeys(chosen, run.KEPT) | {"kernels": run.DONE}


def test_checks(tmp_path: Path) -> None:
    found = rehearse(tmp_path, "checks")
    assert list(found) == [
        *("kernels", "tests", "iad-fp32", "beam-fp32", "strict"),
        *("memcheck", "racecheck", "synccheck"),
    ]
    assert set(list(found.values())[:5]) == {run.DONE}
    assert set(list(found.values())[5:]) == {"not run: it needs a GPU"}
    assert "passed" in (tmp_path / "out" / "tests.log").read_text()
    assert "| 0 |" in (tmp_path / "out" / "iad-fp32.md").read_text()


def test_training(data: Path, tmp_path: Path) -> None:
    """The same command again trains nothing, and its models come back in halves."""
    found = rehearse(tmp_path, "train", "--data", str(data))
    names = ["base", "distilled", "drafters", "drafted", "quality", "halves"]
    assert found == dict.fromkeys(names, run.DONE)
    rows = {row["system"]: row for row in rows_of(tmp_path, "drafted")}
    for name in ("ours, greedy", "IAD", "GAD", "GAD, chain", "blockwise"):
        assert name in rows
    assert rows["GAD"]["quality"] is not None and rows["ours, greedy"]["differ"] == 0
    models = tmp_path / "work" / "rehearsal"
    assert training.logged(tmp_path / "out" / "base.log")["num_updates"] == "2"
    weights = load_checkpoint(str(models / "base" / "checkpoint_last.pt"))
    assert weights.get("last_optimizer_state") is None  # it was not saved
    parts = {path.name for path in (tmp_path / "out").glob("*.pt.*")}
    assert parts == {f"{name}-fp16.pt.00" for name in ("base", *training.KINDS)}
    linked = list((models / "base-data").glob("train*.de-en.de.bin"))
    assert len(linked) == 2 and all(part.is_symlink() for part in linked)
    again = rehearse(tmp_path, "train", "--data", str(data))
    assert again == dict.fromkeys(names, run.KEPT) | {"halves": run.DONE}


def test_models_come_back_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "load_checkpoint", lambda path: torch.load(path, weights_only=True))
    monkeypatch.setattr(halves, "PART", 1000)
    path = tmp_path / "model" / "checkpoint_last.pt"
    path.parent.mkdir()
    torch.save({"model": {"weight": torch.ones(999)}, "last_optimizer_state": 1}, path)
    halves.main(tmp_path, tmp_path)
    parts = sorted(tmp_path.glob("model-fp16.pt.*"))
    assert len(parts) > 2 and all(part.stat().st_size <= 1000 for part in parts)
    (tmp_path / "whole.pt").write_bytes(b"".join(part.read_bytes() for part in parts))
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert whole["model"]["weight"].dtype is torch.float16 and whole["last_optimizer_state"] is None


def options(job: Job) -> list[str]:
    """Names of options, in order, but for the device, the precision and how much there is."""
    apart = {"--cpu", "--bf16", "--fp16", "--num-workers", "--sentences", "--repeats"}
    names = [word.partition("=")[0] for word in job.arguments if word.startswith("--")]
    return [name for name in names if name not in apart]


def fake_base(plan: Plan) -> None:
    """What training the base leaves: a checkpoint, and a log of 900 updates in 100 seconds."""
    line = {"num_updates": "900", "wall": "100", "loss": "2"}
    plan.log("base").write_text(f"| train_inner | {json.dumps(line)}\n")
    checkpoint, tiny = training.checkpoint(plan, "base"), random_models.SIZES["tiny"].flags()
    checkpoint.parent.mkdir()
    languages = "--source-lang=de", "--target-lang=en"
    random_models.write_checkpoint(checkpoint, plan.data, "transformer", *tiny, *languages)


def test_what_runs_is_what_was_rehearsed(data: Path, tmp_path: Path) -> None:
    plans = [plan_of(data, tmp_path, rehearse) for rehearse in (True, False)]
    fake_base(plans[0])
    shutil.copytree(data, plans[0].work / "distilled")
    (plans[0].work / "distilled" / "distillation.json").touch()
    with mock.patch.object(profiles, "tested", lambda *_, **__: Job("tests", "pytest", [])):
        for name in ("speed", "train"):
            tiny, real = (
                [job for stage in profiles.PROFILES[name](plan) for job in stage.jobs(200.0)]
                for plan in plans
            )
            assert [job.name for job in tiny] == [job.name for job in real]
            assert [*map(options, tiny[1:])] == [*map(options, real[1:])]
    # 900 updates took the base 100 s; three models beside each other need twice as long each.
    assert training.affordable(plans[1], 200.0) == int(0.8 * 200 * 9 / 2)


def test_no_raw_data_have_the_name_of_distilled_ones(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    stages = {stage.name: stage for stage in training.train(plan)}
    (plan.work / "distilled").mkdir()  # ended before the last shard
    for name, reason in (("drafters", "distilled has not ended"), ("drafted", "base was not")):
        assert reason in run.run_stage(stages[name], plan, 60, NONE)["state"]
    (plan.work / "distilled" / "distillation.json").touch()
    assert "base was not trained" in run.run_stage(stages["drafters"], plan, 60, NONE)["state"]
    assert not (plan.work / "paper-data").exists()


def test_an_epoch_has_as_many_updates_as_it_takes(data: Path, tmp_path: Path) -> None:
    sides = [(data.parent / "subwords" / f"train.{side}").open() for side in ("de", "en")]
    tokens = sum(
        max(len(source.split()), len(target.split())) + 1
        for source, target in zip(*sides, strict=True)
    )
    copies = training.copies(plan_of(data, tmp_path), data)
    assert copies * tokens >= training.EPOCH * training.MAX_TOKENS > (copies - 1) * tokens


# -- the driver


def python(name: str, program: str, ended: Path | None = None) -> Job:
    """A job that runs a module of one line, beside the test."""
    return Job(name, "timeit", ["-n", "1", "-r", "1", program], ended)


def staged(*jobs: Job) -> Stage:
    return Stage("a stage", 1, lambda seconds: jobs)


def test_a_job_that_fails_or_hangs(tmp_path: Path) -> None:
    """Neither ends the others; what it has found is named, and it is not taken for done."""
    plan = plan_of(tmp_path, tmp_path)
    good, bad = (plan.work / f"{name}.done" for name in ("good", "bad"))
    jobs = python("fails", "raise SystemExit('no such thing')", bad), python("good", "1", good)
    found = run.run_stage(staged(*jobs), plan, 60, NONE)
    assert found["state"].startswith("fails: failed (1)") and "no such thing" in found["state"]
    assert good.exists() and not bad.exists()
    (plan.out / "hangs.md").touch()
    found = run.run_stage(
        staged(python("hangs", "import time; time.sleep(60)", bad)), plan, 1, NONE
    )
    assert found["state"] == "hangs: ended at its time" and found["files"] == ["hangs.md"]
    assert not bad.exists()
    assert run.run_stage(staged(jobs[1]), plan, 1, NONE)["state"] == run.KEPT


def test_a_device_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel of ours runs in the stages behind it."""
    told = f"import os; print('switch', os.environ.get('{VARIABLE}'))"
    stages = [
        Stage("breaks", 1, lambda _: [python("breaks", "raise SystemExit('CUDA error: 700')")]),
        Stage("next", 1, lambda _: [python("next", told)]),
    ]
    monkeypatch.setitem(profiles.PROFILES, "speed", lambda plan: stages)
    monkeypatch.delenv(VARIABLE, raising=False)
    given = ["--rehearse", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert run.main(given) == 1
    states = json.loads((tmp_path / "out" / "speed.json").read_text())["results"]
    assert "no-gpu from here on" in states["breaks"]["state"]
    assert states["next"]["state"] == run.DONE
    assert "switch no-gpu" in (tmp_path / "out" / "next.log").read_text()


def test_time_is_shared_by_weight() -> None:
    given = [Stage(str(weight), weight, lambda _: []) for weight in (150, 40, 110)]
    assert run.share(300, given) == pytest.approx(150)
    assert run.share(300, given[1:]) == pytest.approx(80)


def test_cells_name_the_kernels_that_ran() -> None:
    launch = mock.Mock()
    with mock.patch.object(Module, "launch", launch), launches() as names:
        for name in ("look", "verify", "look"):
            Module.launch(mock.Mock(), name, b"", 1, 32)
    assert names == {"look", "verify"} and launch.call_count == 3


def test_a_sanitizer_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingError, match="not installed"):
        profiles.sanitized(plan_of(tmp_path, tmp_path, rehearse=False), "memcheck")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/bin/sanitizer")
    job = profiles.sanitized(plan_of(tmp_path, tmp_path, rehearse=False), "memcheck")
    assert "/bin/sanitizer" in job.under and "--device" in job.arguments


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
import sys
from scripts.recipes.gpu import run
from scripts.recipes.gpu.plan import Job, Stage

sleep = Job("endless", "timeit", ["-n", "1", "import time; print('begun', flush=True); time.sleep(600)"])
run.PROFILES["speed"] = lambda plan: [Stage("endless", 1, lambda _: [sleep])]
sys.exit(run.main(["--out", sys.argv[1], "--rehearse", "--work", sys.argv[1]]))
"""


def test_who_ends_the_script_ends_its_jobs(tmp_path: Path) -> None:
    # A tree of its own, which sets nothing up.
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "gpu.sh", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup.sh").write_text("")
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "{tmp_path}"\n')
    own.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    command = ["bash", str(tmp_path / "scripts" / "gpu.sh"), "--out", str(tmp_path)]
    script, log = subprocess.Popen(command, env=environment), tmp_path / "endless.log"
    try:
        while not log.exists() or "begun" not in log.read_text():
            assert script.poll() is None
            time.sleep(0.1)
        below = processes_of(script.pid)
        assert len(below) == 2  # the program and its job
    finally:
        script.terminate()
    assert script.wait(60) == 128 + signal.SIGTERM
    until = time.monotonic() + 30
    while any(Path(f"/proc/{process}").exists() for process in below):
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--seconds", "0"], "it must be above 0"),
        (["--path", "model.pt"], "--path needs --data"),
        (["--profile", "train", "--data", "nowhere"], "--prepare makes it"),
        (["--stages", "audits"], "speed has 'kernels'"),
    ],
)
def test_refusals(tmp_path: Path, more: list[str], says: str) -> None:
    given = ["--rehearse", "--out", str(tmp_path / "out"), "--work", str(tmp_path)]
    with pytest.raises(SystemExit, match=says):
        run.main([*given, *more])


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(SystemExit, match="PyTorch finds no GPU: try --rehearse"):
        run.main(["--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("folder", "says"), [("nowhere", "there is no such folder"), ("docs", "there are no wheels")]
)
def test_wheels_that_are_not_there(folder: str, says: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "scripts/gpu.sh", "--wheels", folder, "--out", str(tmp_path)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "BASE_PYTHON": str(ROOT / ".venv" / "bin" / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0 and says in done.stderr
