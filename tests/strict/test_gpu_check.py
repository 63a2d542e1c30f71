"""The check of a first GPU, rehearsed: every stage runs, and one that fails does not end the others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from fairseq_aggdec.cli import gpu_check
from fairseq_aggdec.evaluation.gpu_stages import STAGES

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


def test_a_stage_that_fails_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = gpu_check.stage("versions", ["--rehearse"], tmp_path, 0.01)
    assert ended["state"] == "ended after 0 s" and ended["rows"] == []
    monkeypatch.setattr(gpu_check, "MODULE", "nowhere")
    output = str(tmp_path / "check")
    stages = ["--stages", "versions", "memory"]
    assert gpu_check.main(["--rehearse", "--output", output, *stages]) == 1
    found = json.loads((tmp_path / "check.json").read_text())["results"]
    assert [one["state"].startswith("failed (1)") for one in found.values()] == [True, True]
    assert "No module named nowhere" in found["versions"]["state"]


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
