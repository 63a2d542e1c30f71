"""Commands have threads sleep while they wait, which must be said before PyTorch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
