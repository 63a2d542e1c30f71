"""aggdec-generate --input-file by several processes, whatever is killed or taken away: the same bytes."""

from __future__ import annotations

import multiprocessing
import random
import signal
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

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


def test_kills_and_workers_change_nothing(folder: Path, expected: bytes, tmp_path: Path) -> None:
    target, generator = tmp_path / "out", random.Random(3)
    given = arguments(folder, target)
    for _ in range(2):  # rounds of kills
        wanted = len(shards(target)) + generator.randint(1, 4)
        processes = [start(given) for _ in range(3)]
        while processes[0].exitcode is None and len(shards(target)) < wanted:
            processes[0].join(0.001)
        for process in processes:
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL
        assert not target.exists()
    processes = [start(given) for _ in range(3)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert target.read_bytes() == expected
    assert {path.name for path in Path(f"{target}.parts").iterdir()} == {
        "text.job.json",
        "merged.json",
    }
