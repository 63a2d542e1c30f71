"""Commands have no more threads than a quota allows, which sleep while they wait: said before PyTorch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_aggdec.startup import waiting

ROOT = Path(__file__).resolve().parents[2]
LOOK = "import os, sys, fairseq_aggdec.cli.NAME; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"


@pytest.mark.parametrize("own", ["", "active"])
@pytest.mark.parametrize("name", ["main", "fairseq_commands"])
def test_waiting_is_said_before_pytorch_is_loaded(name: str, own: str) -> None:
    before = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", LOOK.replace("NAME", name)],
        env=before | ({"OMP_WAIT_POLICY": own} if own else {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [own or "passive", "False"]


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "300000 100000\n"}, 3),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.max": "900000 100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({}, 4),
    ],
)
def test_the_quota_of_a_container(
    files: dict[str, str], processors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(waiting, "GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("KMP_BLOCKTIME", "0")
    waiting.set_up_threads()
    assert waiting.processors() == processors
    assert os.environ.pop("OMP_NUM_THREADS", "4") == str(processors)
    assert os.environ["OMP_WAIT_POLICY"] == "active"
