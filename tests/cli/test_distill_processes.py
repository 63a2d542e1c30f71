"""``aggdec distill`` by several processes, which are killed again and again: the bytes are the same."""

from __future__ import annotations

import multiprocessing
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

import pytest

from scripts import random_models
from tests import warm
from tests.cli.commands import ROOT
from tests.cli.distilling import (
    COMMAND,
    COUNT,
    PAIR,
    arguments,
    contents,
    distill,
    shards,
    write_folder,
)

# Processes are forked from one that has imported everything: they start in a second instead of four.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.cli.preloaded"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("distill"))


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Path:
    """Decoded and merged by one process, without interruption."""
    output = folder / "undisturbed"
    distill(folder, output)
    return output


def start(folder: Path, output: Path, *more: str) -> BaseProcess:
    """Starts distill.py in a process of its own."""
    process = context.Process(target=runpy.run_module, args=(COMMAND[1], None, "__main__"))
    with mock.patch.object(sys, "argv", ["aggdec", "distill", *arguments(folder, output, *more)]):
        process.start()
    return process


def run_until(made: str, number: int) -> None:
    """distill.py, that gets a signal at the moment when it makes a folder or moves a file to this place."""
    came = False

    def watch(event: str, operands: tuple[object, ...]) -> None:
        nonlocal came
        found = event in ("os.mkdir", "os.rename") and not came
        if found and any(fnmatch(str(one), made) for one in operands[:2]):
            came = True
            os.kill(os.getpid(), number)

    sys.addaudithook(watch)
    runpy.run_module(COMMAND[1], run_name="__main__")


def kill_when(process: BaseProcess, reached: Callable[[], bool]) -> None:
    """Kills a process once something can be seen; it must not have ended by then."""
    while process.exitcode is None and not reached():
        process.join(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("workers", "more"),
    [
        (3, []),
        # Drafts of a learned length, and what stands depends on them.
        (2, ["--decoding", "iad", "--beam", "1", "--acceptance", "top-beta:9"]),
    ],
)
def test_kills_and_workers_change_nothing(
    workers: int, more: list[str], folder: Path, undisturbed: Path, tmp_path: Path
) -> None:
    if more:
        undisturbed, tmp_path = tmp_path / "whole", tmp_path / "killed"
        distill(folder, undisturbed, *more, "--keep-cut")
    whole, generator = shards(undisturbed), random.Random(3)
    assert len(whole) == COUNT
    for _ in range(2):
        target = len(shards(tmp_path)) + generator.randint(1, 4)
        processes = [start(folder, tmp_path, *more) for _ in range(workers)]
        kill_when(processes[0], lambda target=target: len(shards(tmp_path)) >= target)
        for process in processes:
            process.kill()
            process.join()
        assert 0 < len(shards(tmp_path)) < COUNT
    last = [start(folder, tmp_path, *more, "--keep-cut") for _ in range(workers)]
    for process in last:
        process.join()
        assert process.exitcode == 0
    assert shards(tmp_path) == whole
    if more:  # with what a merge drops by default, nothing would be left
        distill(folder, tmp_path, *more, "--merge", "--keep-cut")
    else:
        distill(folder, tmp_path, *more, "--merge")
    assert contents(tmp_path) == contents(undisturbed)
    left = {path.name for path in (tmp_path / "shards").iterdir()}
    assert left == {*whole, "train.job.json"}


@pytest.mark.parametrize("seen", ["merge.*.partial", f"valid.{PAIR}.{random_models.SOURCE}.bin"])
def test_a_killed_merge_is_repeated(
    seen: str, folder: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    process = context.Process(target=run_until, args=(str(tmp_path / seen), signal.SIGKILL))
    with mock.patch.object(
        sys, "argv", ["aggdec", "distill", *arguments(folder, tmp_path, "--merge")]
    ):
        process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    distill(folder, tmp_path, "--merge")
    assert contents(tmp_path) == contents(undisturbed)
    assert not list(tmp_path.glob("merge.*"))


def test_a_merge_that_stands_still_is_waited_for(
    folder: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    seen = str(tmp_path / f"valid.{PAIR}.{random_models.SOURCE}.bin")
    paused = context.Process(target=run_until, args=(seen, signal.SIGSTOP))
    with mock.patch.object(
        sys, "argv", ["aggdec", "distill", *arguments(folder, tmp_path, "--merge")]
    ):
        paused.start()
    stat = Path(f"/proc/{paused.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert paused.exitcode is None
        paused.join(0.01)
    try:
        with mock.patch("time.sleep", lambda _: os.kill(paused.pid or 0, signal.SIGCONT)):
            distill(folder, tmp_path)
    finally:
        paused.join()
    assert paused.exitcode == 0
    assert contents(tmp_path) == contents(undisturbed)


# -- distill.sh and torchrun


def shell(folder: Path, output: Path, python: str) -> subprocess.Popen[str]:
    """distill.sh with two processes, each process and its children in one group."""
    data, _, _, *rest = arguments(folder, output)
    return subprocess.Popen(
        ["bash", str(ROOT / "scripts" / "distill.sh"), data, str(output), *rest],
        env={**os.environ, "PROCESSES": "2", "PYTHON": python},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_two_processes_fail_then_all_is_well(
    folder: Path, undisturbed: Path, tmp_path: Path
) -> None:
    killed = start(folder, tmp_path)
    kill_when(killed, lambda: len(shards(tmp_path)) >= 2)
    path = tmp_path / "shards" / "train.job.json"
    header = path.read_bytes()
    path.write_bytes(b"{}")
    running = shell(folder, tmp_path, warm.python())
    printed, _ = running.communicate(timeout=1200)
    assert running.returncode == 2
    assert "process 0 failed" in printed and "process 1 failed" in printed
    assert "train.job.json is not what was written" in printed
    assert "the same command" in printed
    path.write_bytes(header)
    running = shell(folder, tmp_path, warm.python())
    printed, _ = running.communicate(timeout=1200)
    assert running.returncode == 0, printed
    assert contents(tmp_path) == contents(undisturbed)
    assert shards(tmp_path) == shards(undisturbed)
    kept = (tmp_path / "text" / "train.target").read_text().count("\n")
    assert f"train: {kept} of 200" in printed


def test_torchrun(folder: Path, undisturbed: Path, tmp_path: Path) -> None:
    launcher = [warm.python(), "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "--no-python", warm.python(), *COMMAND, *arguments(folder, tmp_path)],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path) == contents(undisturbed)
    assert shards(tmp_path) == shards(undisturbed)
