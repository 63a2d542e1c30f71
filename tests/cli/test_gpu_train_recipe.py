"""The training on a lent GPU, rehearsed at toy size: every stage of every kind, and what is kept and what fails."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.compat import load_checkpoint
from scripts import random_models
from scripts.recipes.gpu_train import stages, train
from scripts.recipes.gpu_train.plan import SIZES, Job, Plan, Row, Stage
from tests import warm
from tests.cli.test_multi30k_recipes import SETTINGS
from tests.cli.wmt_files import recipe, write_multi30k


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and subwords, as --prepare makes them."""
    folder = tmp_path_factory.mktemp("prepared")
    write_multi30k(folder / "raw")
    settings = SETTINGS | {"WORK": str(folder / "work"), "MAX_UPDATE": "0"}
    result = recipe("multi30k", str(folder / "raw"), **settings)
    assert result.returncode == 0, result.stderr[-2000:]
    assert not (folder / "work" / "train-de-en").exists()
    return folder / "work"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs begin with everything imported."""
    monkeypatch.setenv("PYTHON", warm.python())


def rehearse(prepared: Path, folder: Path, what: str) -> dict[str, Any]:
    """Stages of a rehearsal, by name."""
    given = ["--rehearse", "--what", what, "--out", str(folder / "out"), "--seconds", "900"]
    given += ["--data", str(prepared / "data-de-en"), "--work", str(folder / "work")]
    code = train.main(given)
    found = json.loads((folder / "out" / f"gpu-train-{what}.json").read_text())
    states = {name: one["state"] for name, one in found["results"].items()}
    assert code == 0 and set(states.values()) <= {"done", "kept"}, states
    assert (folder / "out" / f"gpu-train-{what}.md").exists()
    return dict(found)


def test_pair(prepared: Path, tmp_path: Path) -> None:
    """Weights are in bfloat16, as a GPU leaves them; the same command again trains nothing."""
    record = rehearse(prepared, tmp_path, "pair")
    found = record["results"]
    assert list(found) == ["base", "distilled", "drafters and heads", "speed", "quality"]
    assert found["base"]["rows"][0]["updates"] == 2
    names = [row["model"] for row in found["drafters and heads"]["rows"]]
    assert names == ["paper", "chain", "heads"]
    rows = {row["system"]: row for row in found["speed"]["rows"]}
    for name in ("ours, greedy", "IAD", "GAD", "GAD, chain"):
        assert rows[name]["differ"] == 0
    assert rows["GAD"]["quality"] is not None and "by_slot" in rows["GAD"]
    weights = load_checkpoint(str(tmp_path / "work" / "base" / "checkpoint_last.pt"))
    assert {x.dtype for x in weights["model"].values()} == {torch.bfloat16}
    assert weights["last_optimizer_state"] is None
    assert sorted(record["files"]) == [
        f"{name}-fp16.pt" for name in ("base", "chain", "heads", "paper")
    ]
    parts = list((tmp_path / "work" / "raw-data").glob("train*.de-en.de.bin"))
    assert len(parts) == 2 and all(part.is_symlink() for part in parts)
    again = rehearse(prepared, tmp_path, "pair")["results"]
    assert {one["state"] for one in again.values()} == {"kept"}
    assert again["speed"]["rows"] == found["speed"]["rows"]


def test_stern(prepared: Path, tmp_path: Path) -> None:
    """All models of the table have as many updates; heads on a frozen base keep its weights."""
    found = rehearse(prepared, tmp_path, "stern")["results"]
    rows = found["table"]["rows"]
    exact = {row["model"]: row for row in rows if row["rule"] == "exact"}
    assert set(exact) == {f"{setting}/8" for setting in stages.STERN}
    assert {row["updates"] for row in exact.values()} == {2}
    assert {row["differ"] for row in exact.values()} == {0}


def test_zhang(prepared: Path, tmp_path: Path) -> None:
    found = rehearse(prepared, tmp_path, "zhang")["results"]
    words = [row for row in found["figures"]["rows"] if row["part"] == "words"]
    assert {"2x1", "2x2", "2x4", "2x4, dedup"} <= {row["system"] for row in words}
    assert {"otem", "utem", "bleu"} <= words[0].keys()
    assert {row["model"] for row in found["contrast"]["rows"]} == {
        "Transformer",
        "2x1",
        "2x2",
        "2x4",
    }


def test_lattice(prepared: Path, tmp_path: Path) -> None:
    found = rehearse(prepared, tmp_path, "lattice")["results"]
    systems = [row["system"] for row in found["table"]["rows"]]
    assert systems[-3:] == ["lattice, N = 32", "lattice, N = 64", "NAT"]


def options(job: Job) -> list[str]:
    """Names of options, in order."""
    return [word.partition("=")[0] for word in job.arguments if word.startswith("--")]


def fake_base(plan: Plan) -> None:
    """What training the base leaves: a checkpoint, and a log of 900 updates in 100 seconds."""
    line = {"num_updates": "900", "wall": "100", "loss": "2"}
    plan.log("base").write_text(f"| train_inner | {json.dumps(line)}\n")
    checkpoint, tiny = plan.checkpoint("base"), random_models.SIZES["tiny"].flags()
    checkpoint.parent.mkdir()
    languages = "--source-lang=de", "--target-lang=en"
    random_models.write_checkpoint(checkpoint, plan.data, "transformer", *tiny, *languages)


def test_large_models_come_back_in_parts(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest model first, as much as a run may bring; the next run brings the rest, and nothing twice."""
    plan = plan_of(prepared, tmp_path / "work")
    plan.work.mkdir()
    fake_base(plan)
    plan.folder("small").mkdir()
    torch.save({"model": {"weight": torch.ones(9)}}, plan.checkpoint("small"))
    monkeypatch.setattr(train, "load_checkpoint", lambda path: torch.load(path, weights_only=True))
    wholes = {file.name.partition("-")[0]: file for file in train.halves(plan)}
    size = wholes["base"].stat().st_size
    assert wholes["small"].stat().st_size < size // 3
    monkeypatch.setattr(train, "PART", size // 3)
    monkeypatch.setattr(train, "ROOM", size)
    monkeypatch.setattr(train, "FILES", 3)
    parts = [f"base-fp16.pt.{number:02}" for number in range(-(-size // (size // 3)))]
    out = [tmp_path / str(run) for run in range(3)]
    for folder in out:
        folder.mkdir()
    first = ["small-fp16.pt", *parts[:2]]
    assert train.bring_back(plan, out[0]) == (first, parts[2:])
    assert train.bring_back(plan, out[1]) == (parts[2:], [])
    assert train.bring_back(plan, out[2]) == ([], []) and not list(out[2].iterdir())
    joined = b"".join((out[place > 1] / part).read_bytes() for place, part in enumerate(parts))
    assert joined == wholes["base"].read_bytes()
    # A model that has been trained on comes back anew.
    torch.save({"model": {"weight": torch.zeros(9)}}, plan.checkpoint("small"))
    later = wholes["small"].stat().st_mtime + 9
    os.utime(plan.checkpoint("small"), (later, later))
    assert train.bring_back(plan, out[2]) == (["small-fp16.pt"], [])


@pytest.mark.parametrize("what", stages.WHAT)
def test_what_runs_is_what_was_rehearsed(prepared: Path, tmp_path: Path, what: str) -> None:
    """Jobs have the same options, in the same order, but for the device and the precision."""
    plans = [
        Plan(prepared / "data-de-en", tmp_path, SIZES[size], rehearse=size == "toy")
        for size in ("toy", "base")
    ]
    shutil.copytree(prepared / "data-de-en", tmp_path / "distilled")
    (tmp_path / "distilled" / "distillation.json").touch()
    fake_base(plans[0])
    made = [
        [options(job) for stage in stages.WHAT[what](plan) for job in stage.jobs(200.0)]
        for plan in plans
    ]
    apart = {"--cpu", "--bf16", "--fp16"}
    rehearsed, real = ([[x for x in job if x not in apart] for job in one] for one in made)
    assert rehearsed == real
    trained = [
        job for stage in stages.WHAT[what](plans[1]) for job in stage.jobs(200.0) if job.trains
    ]
    updates = [
        int(word.split("=")[1])
        for job in trained[1:]
        for word in job.arguments
        if "--max-update=" in word
    ]
    # 900 updates took the base 100 s; two models beside each other need 1.5 times as long, three 2, four 2.5.
    assert what == "zhang" or set(updates) == {
        int(0.8 * 200 * 9 / {"pair": 2, "stern": 2.5, "lattice": 1.5}[what])
    }


def test_no_raw_data_have_the_name_of_distilled_ones(prepared: Path, tmp_path: Path) -> None:
    plan = plan_of(prepared, tmp_path)
    (heads,) = (one for one in stages.stern(plan) if one.name == "heads")
    assert train.run_stage(heads, plan, 60)["state"] == "not run: base was not trained"
    fake_base(plan)
    plan.folder("distilled").mkdir()  # ended before the last shard
    for what in ("pair", "stern", "lattice"):
        (stage,) = (
            one for one in stages.WHAT[what](plan) if "heads" in one.name or "NAT" in one.name
        )
        found = train.run_stage(stage, plan, 60)
        assert found["state"] == "not run: distilled has not ended"
    assert not plan.folder("distilled-data").exists()


# -- the driver


def plan_of(prepared: Path, work: Path, **options: Any) -> Plan:
    return Plan(prepared / "data-de-en", work, SIZES["toy"], rehearse=True, **options)


def python(name: str, program: str) -> Job:
    """A job that runs a module of one line, beside the test."""
    return Job(name, "timeit", ["-n", "1", "-r", "1", program])


def staged(*jobs: Job, rows: list[Row] | None = None) -> Stage:
    return Stage("a stage", 1, lambda seconds: jobs, lambda: rows or [])


def test_a_job_that_fails_or_hangs(prepared: Path, tmp_path: Path) -> None:
    """Neither ends the others; rows that it has left are kept, and it is not taken for done."""
    plan = plan_of(prepared, tmp_path)
    fails = staged(python("fails", "raise SystemExit('no such thing')"), python("good", "1"))
    found = train.run_stage(fails, plan, 60)
    assert found["state"].startswith("fails: failed (1)") and "no such thing" in found["state"]
    assert plan.whole("good").exists() and not plan.whole("fails").exists()
    hangs = staged(python("hangs", "import time; time.sleep(60)"), rows=[{"a": 1}])
    found = train.run_stage(hangs, plan, 0.2)
    assert found["state"] == "hangs: ended, its time was over" and found["rows"] == [{"a": 1}]
    assert train.run_stage(staged(python("good", "1")), plan, 1)["state"] == "kept"


def test_time_is_shared_by_weight() -> None:
    given = [Stage(str(weight), weight, lambda _: [], list) for weight in (150, 40, 110)]
    assert train.share(300, given) == pytest.approx(150)
    assert train.share(300, given[1:]) == pytest.approx(80)


def test_an_epoch_has_as_many_updates_as_it_takes(prepared: Path, tmp_path: Path) -> None:
    """Enough copies that 900 batches fit in; a distilled set is read in place of the plan's."""
    plan = Plan(prepared / "data-de-en", tmp_path, SIZES["small"])
    tokens = sum(
        max(len(source.split()), len(target.split())) + 1
        for source, target in zip(
            *((prepared / "subwords" / f"train.{x}").open() for x in ("de", "en")), strict=True
        )
    )
    copies = plan.copies(plan.data)
    assert copies * tokens >= 900 * plan.size.max_tokens > (copies - 1) * tokens
    shutil.copytree(prepared / "data-de-en", tmp_path / "distilled")
    (tmp_path / "distilled" / "distillation.json").touch()
    assert plan.source("distilled") == tmp_path / "distilled"
    assert plan.source("raw") == plan.data


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--seconds", "0"], "it must be above 0"),
        (["--data", "nowhere"], "make it by --prepare"),
        (["--subwords", "nowhere"], "there is no such file"),
    ],
)
def test_refusals(prepared: Path, tmp_path: Path, more: list[str], says: str) -> None:
    given = ["--rehearse", "--data", str(prepared / "data-de-en"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match=says):
        train.main([*given, *more])


def test_without_a_gpu_it_says_so(prepared: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    given = ["--data", str(prepared / "data-de-en"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="PyTorch finds no GPU: try --rehearse"):
        train.main(given)
