"""aggdec-generate --input-file by several processes, whatever is killed or taken away: the same bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from fairseq_aggdec.bulk import compressed
from fairseq_aggdec.cli import fairseq_commands
from tests.cli.translating import arguments, shards, stock_output, write_folder

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.cli.preloaded"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("translate"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> bytes:
    return stock_output(folder)


def work(given: list[str]) -> None:
    sys.argv = ["aggdec-generate", *given]
    sys.exit(fairseq_commands.generate())


def start(given: list[str]) -> BaseProcess:
    process = context.Process(target=work, args=(given,))
    process.start()
    return process


@pytest.mark.parametrize("workers", [1, 3])
def test_kills_and_workers_change_nothing(
    workers: int, folder: Path, expected: bytes, tmp_path: Path
) -> None:
    target, generator = tmp_path / "out", random.Random(workers)
    given = arguments(folder, target)
    for _ in range(4 - workers):  # rounds of kills
        wanted = len(shards(target)) + generator.randint(1, 4)
        processes = [start(given) for _ in range(workers)]
        while processes[0].exitcode is None and len(shards(target)) < wanted:
            processes[0].join(0.001)
        for process in processes:
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL
        assert not target.exists()
    processes = [start(given) for _ in range(workers)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert target.read_bytes() == expected
    assert {path.name for path in Path(f"{target}.parts").iterdir()} == {
        "text.job.json",
        "merged.json",
    }


def stop_and_work(given: list[str], name: str) -> None:
    """A worker that stops itself before it writes or puts in place a file of this name for the first time."""
    stopped = False

    def watch(event: str, operands: tuple[object, ...]) -> None:
        nonlocal stopped
        found = event in ("open", "os.link", "os.rename") and not stopped
        if found and any(Path(str(one)).match(name) for one in operands[:2]):
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(watch)
    work(given)


@pytest.mark.parametrize(
    ("ending", "name"),
    [("", "*.5-of-25.shard"), ("", "output.*.partial"), (".gz", "out.gz"), (".zst", "out.zst")],
)
def test_a_worker_that_stands_still_for_longer_than_its_lease(
    ending: str, name: str, folder: Path, expected: bytes, tmp_path: Path
) -> None:
    """Another one does its work; when it goes on it changes nothing, and ends well."""
    target = tmp_path / f"out{ending}"
    given = arguments(folder, target, "--lease", "1")
    paused = context.Process(target=stop_and_work, args=(given, name))
    paused.start()
    stat = Path(f"/proc/{paused.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert paused.exitcode is None
        paused.join(0.01)
    try:
        other = start(given)
        other.join()
        assert other.exitcode == 0
        written = target.read_bytes(), target.stat().st_ino
    finally:
        assert paused.pid is not None
        os.kill(paused.pid, signal.SIGCONT)
        paused.join()
    assert paused.exitcode == 0
    assert written == (target.read_bytes(), target.stat().st_ino)
    with compressed.open_read(target) as file:
        assert file.read() == expected
    left = {path.name for path in Path(f"{target}.parts").iterdir()}
    assert left == {"text.job.json", "merged.json"}


def launched(folder: Path, target: Path, number: str) -> BaseProcess:
    return start(arguments(folder, target, "--launcher", "local", "--workers", number))


def test_submitit_on_this_machine(folder: Path, expected: bytes, tmp_path: Path) -> None:
    target = tmp_path / "out"
    process = launched(folder, target, "2")
    process.join()
    assert process.exitcode == 0
    assert target.read_bytes() == expected
    logs = [path.read_text() for path in (tmp_path / "out.parts" / "launcher").glob("*.err")]
    assert len(logs) == 2


def test_a_preempted_job_goes_on(folder: Path, expected: bytes, tmp_path: Path) -> None:
    """The signal that submitit has Slurm send before it takes a machine away."""
    target = tmp_path / "out"
    process = launched(folder, target, "1")
    worker = None
    while process.exitcode is None and worker is None:
        process.join(0.001)
        for claim in Path(f"{target}.parts").glob("*.claim"):
            with suppress(FileNotFoundError, ValueError):  # given back, or being written
                worker = json.loads(claim.read_text())["pid"]
    assert worker is not None
    os.kill(worker, signal.SIGUSR2)
    process.join()
    assert process.exitcode == 0
    assert target.read_bytes() == expected
    (log,) = (tmp_path / "out.parts" / "launcher").glob("*.err")
    assert "Requeued job" in log.read_text()
