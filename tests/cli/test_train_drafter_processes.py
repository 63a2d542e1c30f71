"""``aggdec train-drafter``, killed: nothing of it goes on, and the same command ends what it began."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.cli.commands import ROOT, Trained

# Says that it is there and holds a pipe open as long as it lives.
CHILD = "import time; pipe = open({!r}, 'w'); print('here', file=pipe, flush=True); time.sleep(300)"
PARENT = (
    "from fairseq_aggdec.distill.drafter_training import run_module; "
    "run_module('timeit', ['-n', '1', '-r', '1', {!r}], {log})"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only there a process learns of it")
@pytest.mark.parametrize("log", ["None", "__import__('pathlib').Path('child.log')"])
def test_a_step_ends_with_the_command(log: str, tmp_path: Path) -> None:
    """Whether it prints itself or is read; a SIGKILL leaves the command no time to end anything."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = PARENT.format(CHILD.format(str(fifo)), log=log)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([warm.python(), "-c", program], env=environment, cwd=tmp_path)
    with fifo.open() as pipe:
        assert pipe.readline() == "here\n"
        parent.send_signal(signal.SIGKILL)
        assert pipe.read() == ""  # which ends when the child has ended
    parent.wait()


def command(trained: Trained, folder: Path) -> subprocess.Popen[str]:
    """By the former script, with a checkpoint every other update."""
    settings = {
        "MAX_UPDATE": "12",
        "BLOCK_SIZE": "4",
        "DEVICE_FLAGS": "--cpu",
        "MAX_TOKENS": "400",
        "FLAGS": "--save-interval-updates 2 --validate-interval-updates 2 --log-interval 1",
        "PYTHON": warm.python(),
    }
    place = [str(trained.data), str(trained.checkpoint), str(folder / "out")]
    return subprocess.Popen(
        ["bash", str(ROOT / "scripts" / "train_drafter.sh"), *place],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_same_command_goes_on_after_a_kill(trained: Trained, tmp_path: Path) -> None:
    first = command(trained, tmp_path)
    assert first.stdout is not None
    for line in first.stdout:
        if "Saved checkpoint" in line:
            first.send_signal(signal.SIGTERM)
            break
    first.communicate()  # nobody holds its output any more
    partial = tmp_path / "out" / "drafter.partial"
    assert first.returncode != 0 and (partial / "checkpoint_last.pt").exists()
    distilled = (tmp_path / "out" / "distilled" / "distillation.json").stat().st_mtime_ns

    said, _ = (second := command(trained, tmp_path)).communicate()
    assert second.returncode == 0, said[-2000:]
    assert "distilled: done already, kept" in said and "Loaded checkpoint" in said
    done = tmp_path / "out" / "drafter"
    assert (done / "checkpoint_best.pt").exists() and not partial.exists()
    assert (tmp_path / "out" / "distilled" / "distillation.json").stat().st_mtime_ns == distilled
    updates = [
        line for line in (done / "train.log").read_text().splitlines() if "train_inner" in line
    ]
    assert len(updates) < 2 * 12  # some were not made twice
