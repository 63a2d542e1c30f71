"""Claims: one holder at a time, and none held by the dead."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from unittest import mock

import pytest

from fairseq_aggdec.jobs.claims import claim, turn

fork = multiprocessing.get_context("fork")


def held(folder: Path) -> bool:
    with claim(folder, "a") as mine:
        return mine


def race(folder: Path, racers: int) -> int:
    """So many threads try at once, and who wins holds on until all have tried; winners."""
    start, end, won = threading.Barrier(racers), threading.Barrier(racers), []

    def run() -> None:
        start.wait(30)
        with claim(folder, "a") as mine:
            won.append(mine)
            end.wait(30)

    threads = [threading.Thread(target=run) for _ in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == racers
    return sum(won)


def hold_and_die(folder: Path) -> None:
    with claim(folder, "a") as mine:
        assert mine
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_claim_is_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        assert held(tmp_path)
    with pytest.raises(KeyError), claim(tmp_path, "a"):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_one_holder(tmp_path: Path) -> None:
    with claim(tmp_path, "a"):
        assert not held(tmp_path)
        with claim(tmp_path, "b") as other:
            assert other
    assert held(tmp_path)


def test_one_of_many_wins(tmp_path: Path) -> None:
    for _ in range(30):
        assert race(tmp_path, 8) == 1


def test_one_of_many_takes_over_from_the_dead(tmp_path: Path) -> None:
    for _ in range(10):
        process = fork.Process(target=hold_and_die, args=(tmp_path,))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert list(tmp_path.iterdir())
        assert race(tmp_path, 8) == 1
        assert not list(tmp_path.iterdir())


def test_a_file_that_its_holder_has_removed_is_not_held(tmp_path: Path) -> None:
    """The lock of a file without a name keeps nobody else out."""
    with claim(tmp_path, "a") as mine:
        assert mine
        (tmp_path / "a.claim").unlink()
        with mock.patch("fcntl.flock"), claim(tmp_path, "a") as other:
            assert other

    def removed(*_: object) -> None:
        (tmp_path / "a.claim").unlink()

    with mock.patch("fcntl.flock", removed):
        assert not held(tmp_path)


def test_workers_of_a_group_share_a_folder(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with claim(tmp_path, "a"):
            assert (tmp_path / "a.claim").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_a_file_system_without_locks_is_named(tmp_path: Path) -> None:
    lacking = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    with (
        mock.patch("fcntl.flock", side_effect=lacking),
        pytest.raises(OSError, match=r"must have locks \(flock\): '.*a\.claim'") as refused,
        claim(tmp_path, "a"),
    ):
        pass
    assert refused.value.errno == errno.ENOLCK


def test_a_turn_is_waited_for_until_it_is_done(tmp_path: Path) -> None:
    said, done = [], []
    with (
        claim(tmp_path, "a"),
        mock.patch("time.sleep", lambda _: done.append(1)),
        turn(tmp_path, "a", lambda: len(done) > 2, lambda: said.append(1)) as mine,
    ):
        assert not mine and len(done) == 3 and said == [1]
    with turn(tmp_path, "a", lambda: True) as mine:
        assert mine
