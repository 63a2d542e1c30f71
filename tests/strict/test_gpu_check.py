"""The check of a first GPU, rehearsed: every stage runs, and one that fails does not end the others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.recipes.gpu import check as gpu_check
from scripts.recipes.gpu.plan import Plan
from scripts.recipes.gpu.stages import STAGES
from tests.strict.device.cases import CASES

ROOT = Path(__file__).resolve().parents[2]


def test_rehearsal(device: torch.device, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if device.type == "cuda":
        pytest.skip("a rehearsal is for machines without a GPU")
    output = tmp_path / "check"
    assert gpu_check.main(["--rehearse", "--output", str(output)]) == 0
    found = json.loads((tmp_path / "check.json").read_text())["results"]
    assert list(found) == list(STAGES)
    assert {one["state"] for one in found.values()} == {"done"}
    assert all(one["rows"] for one in found.values())
    text = (tmp_path / "check.md").read_text()
    assert all(f"## {name}" in text for name in STAGES)
    assert "audits: done, 0 faults" in capfd.readouterr().out
    methods = {case.decoding for case in CASES}
    for stage in ("equality", "counts"):
        named = {row.get("case", row.get("method")) for row in found[stage]["rows"]}
        assert {case.decoding for case in CASES if case.name in named} == methods
    assert all(row["graphs, ms"] and row["no graphs, ms"] for row in found["methods"]["rows"])


def test_a_stage_that_fails_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = gpu_check.stage("versions", Plan(tmp_path, rehearse=True), 0.001)
    assert ended["state"] == "ended after 0 s" and ended["rows"] == []
    monkeypatch.setattr(gpu_check, "Plan", lambda folder, *rest: Plan(folder / "nowhere", *rest))
    output = str(tmp_path / "check")
    stages = ["--stages", "versions", "memory"]
    assert gpu_check.main(["--rehearse", "--output", output, *stages]) == 1
    found = json.loads((tmp_path / "check.json").read_text())["results"]
    assert [one["state"].startswith("failed (1)") for one in found.values()] == [True, True]
    ended = gpu_check.stage("memory", Plan(tmp_path, paths=("model.pt",)), 60)
    assert ended["state"] == "failed (1): RuntimeError: PyTorch finds no GPU"


def test_a_deadline_holds_for_all_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every stage takes all that it gets, the second next to nothing; the clock is made up."""
    clock, given = [100.0], {}

    def stage(name: str, plan: Plan, seconds: float) -> dict[str, Any]:
        given[name] = seconds
        clock[0] += 0.5 if name == "equality" else seconds
        return {"state": "done", "seconds": seconds, "rows": []}

    monkeypatch.setattr(gpu_check, "stage", stage)
    monkeypatch.setattr(gpu_check.time, "monotonic", lambda: clock[0])
    output = ["--output", str(tmp_path / "check")]
    assert gpu_check.main(output) == 0
    assert list(given) == list(STAGES)
    assert clock[0] == pytest.approx(100 + 60 * gpu_check.MINUTES)
    weights = {name: weight for name, (_, weight) in STAGES.items()}
    assert given["times"] / given["memory"] == pytest.approx(weights["times"] / weights["memory"])
    first = 60 * gpu_check.MINUTES / sum(weights.values())
    assert given["versions"] == pytest.approx(first * weights["versions"])
    assert given["times"] > first * weights["times"]  # what equality left over

    given.clear()
    assert gpu_check.main(["--rehearse", *output, "--stages", "times", "memory"]) == 1
    assert list(given) == ["times"]
    found = json.loads((tmp_path / "check.json").read_text())["results"]
    assert found["memory"]["state"] == "not run: no time was left"


def test_what_is_a_fault() -> None:
    rows = [{"differ": 0, "BUGs": 0}, {"differ": 2}, {"BUGs": 1}, {"error": "x"}, {"ties": 3}]
    assert gpu_check.faults({"rows": rows}) == 3
    table = gpu_check.table([{"a": 1.5, "b": None}, {"c": 2e-6}])
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
        (["--rehearse", "--path", "model.pt"], "--path and --data go together"),
        (["--minutes", "0"], "it must be above 0"),
    ],
)
def test_refusals(options: list[str], says: str) -> None:
    done = subprocess.run(
        ["bash", "scripts/gpu_check.sh", *options],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "BASE_PYTHON": str(ROOT / ".venv" / "bin" / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert says in done.stderr
