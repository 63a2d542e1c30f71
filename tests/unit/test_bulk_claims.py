"""Claims: one holder at a time, and none held by the dead."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fairseq_aggdec.jobs import claims
from fairseq_aggdec.jobs.claims import Claims

fork = multiprocessing.get_context("fork")


def held(folder: Path, **options: Any) -> bool:
    with Claims(folder, **options).take("a") as mine:
        return mine


def race(folder: Path, racers: int) -> int:
    """So many threads try at once, each for itself, and who wins holds on until all have tried; winners."""
    start, end, won = threading.Barrier(racers), threading.Barrier(racers), []

    def run() -> None:
        start.wait(30)
        with Claims(folder).take("a") as mine:
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
    with Claims(folder).take("a") as mine:
        assert mine
        os.kill(os.getpid(), signal.SIGKILL)


def leave_dead(folder: Path) -> None:
    """The claim of a process that was killed."""
    process = fork.Process(target=hold_and_die, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def elsewhere(folder: Path) -> Path:
    """The claim of a process of another machine."""
    path = folder / "a.0.claim"
    path.write_text(json.dumps(claims.owner() | {"place": "there", "pid": 0}))
    return path


def test_a_claim_is_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        assert held(tmp_path)
    with pytest.raises(KeyError), Claims(tmp_path).take("a"):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_one_holder(tmp_path: Path) -> None:
    mine = Claims(tmp_path)
    with mine.take("a"):
        assert not held(tmp_path)
        with mine.take("b") as other:
            assert other
    assert held(tmp_path)


def test_one_of_many_wins(tmp_path: Path) -> None:
    for _ in range(30):
        assert race(tmp_path, 8) == 1


@pytest.mark.parametrize("deaths", [1, 3])
def test_one_of_many_takes_over_from_the_dead(deaths: int, tmp_path: Path) -> None:
    for _ in range(10):
        for _ in range(deaths):
            leave_dead(tmp_path)
        assert list(tmp_path.iterdir())
        assert race(tmp_path, 8) == 1
        assert not list(tmp_path.iterdir())


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    """A killed child that its parent has not asked about yet."""
    child = os.fork()
    if child == 0:
        hold_and_die(tmp_path)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert held(tmp_path)
    os.waitpid(child, 0)


def test_a_number_that_another_process_has_now(tmp_path: Path) -> None:
    """The owner's number lives on, but began at another time."""
    path = tmp_path / "a.0.claim"
    path.write_text(json.dumps(claims.owner()))
    assert not held(tmp_path)
    path.write_text(json.dumps(claims.owner() | {"started": 1}))
    assert held(tmp_path)


def test_silence_of_a_lease_is_death(tmp_path: Path) -> None:
    """On another machine, by the watcher's clock; a touch is a sign of life, whatever time it says."""
    path, watcher, clock = elsewhere(tmp_path), Claims(tmp_path, lease=60), mock.Mock()

    def alive(at: float) -> bool:
        clock.return_value = at
        with watcher.take("a") as mine:
            return not mine

    with mock.patch("time.monotonic", clock):
        assert alive(1000) and alive(1059)
        os.utime(path, ns=(5, 5))  # a clock that is far behind
        assert alive(1061) and alive(1120)
        assert not alive(1122)


def test_half_a_claim_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.0.claim").write_text('{"host": "x", "pl')
    assert not held(tmp_path)


def test_the_owner_gives_signs_of_life(tmp_path: Path) -> None:
    touched = threading.Event()
    with (
        mock.patch("os.utime", lambda descriptor: touched.set()),
        Claims(tmp_path, lease=0.01).take("a"),
    ):
        assert touched.wait(30)


def test_a_full_disk_leaves_no_claim(tmp_path: Path) -> None:
    with (
        mock.patch("os.write", side_effect=OSError(28, "No space left on device")),
        pytest.raises(OSError, match="No space"),
    ):
        held(tmp_path)
    assert held(tmp_path)
