"""Jobs: the same bytes whoever works, whatever is killed; what does not fit is refused; progress."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fairseq_aggdec.bulk.translation import NAME, BulkPlaces, merge
from fairseq_aggdec.jobs import job as engine
from fairseq_aggdec.jobs.claims import claim
from fairseq_aggdec.jobs.job import NOTES, BulkError, Job, Progress, UnfinishedError
from tests.cli.faults.bench import small_disk

fork = multiprocessing.get_context("fork")
HEADER = {"shards": 12, "sentences": 120, "options": {"beam": 5}, "model": "abc", NOTES: "x"}


def make_job(folder: Path, **changed: Any) -> Job:
    job = Job(folder, "work", HEADER | changed)
    job.begin()
    return job


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a" * 64, "b" * 64, "was begun with another file for --lattice"),
        (None, "b" * 64, "was begun with --lattice none, not FILE"),
        (5, 4, "was begun with --lattice 5, not 4"),
    ],
)
def test_no_digest_is_shown_as_the_value_of_an_option(old: Any, new: Any, said: str) -> None:
    headers = [HEADER | {"options": {"lattice": value}} for value in (old, new)]
    with pytest.raises(BulkError, match=said):
        engine.check_header("work", *headers)


def body(number: int) -> bytes:
    return f"{number} ".encode() * 1000


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    make_job(folder, shards=80).work(body)
    return contents(folder)


def work_and_die(folder: Path, event: str, times: int) -> None:
    """A worker that is killed at the n-th time when it opens, renames or removes a file."""
    import sys

    seen = 0

    def watch(found: str, _: object) -> None:
        nonlocal seen
        seen += found == event
        if found == event and seen == times:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    make_job(folder, shards=80).work(body)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_kills_change_nothing(
    workers: int, seed: int, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    generator, killed = random.Random(seed), 0
    for _ in range(8):
        events = ["open", "os.rename", "os.remove"]
        deaths = [
            (tmp_path, generator.choice(events), generator.randint(1, 8)) for _ in range(workers)
        ]
        processes = [fork.Process(target=work_and_die, args=death) for death in deaths]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        killed += sum(process.exitcode == -signal.SIGKILL for process in processes)
    assert killed > 6
    job = make_job(tmp_path, shards=80)
    job.work(body)
    job.tidy()
    assert contents(tmp_path) == undisturbed


def test_a_claim_is_removed_once(tmp_path: Path) -> None:
    """Behind the first time the name may be another holder's."""
    job = make_job(tmp_path)
    (tmp_path / f"{job.shard_path(3).stem}.claim").touch()
    with mock.patch.object(Path, "unlink", autospec=True, side_effect=Path.unlink) as removed:
        job.tidy()
    assert removed.call_count == 1


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_shard_is_made_once(
    workers: int, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    made: list[int] = []

    def make(number: int) -> bytes:
        made.append(number)
        return body(number)

    with mock.patch.object(engine, "POLL", 0.001):
        threads = [
            threading.Thread(target=lambda: make_job(tmp_path, shards=80).work(make))
            for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(made) == list(range(80))
    assert contents(tmp_path) == undisturbed


def test_the_last_shards_of_others_are_waited_for(tmp_path: Path) -> None:
    """And made, where the other one dies."""
    job = make_job(tmp_path)
    waited = []

    def wait(_: float) -> None:
        waited.append(job.left())
        if len(waited) == 3:
            others.__exit__(None, None, None)

    others = claim(tmp_path, job.shard_path(7).stem)
    others.__enter__()
    with mock.patch("time.sleep", wait):
        job.work(body)
    assert waited == [[7]] * 3
    assert job.read(7) == body(7)


def test_a_shard_that_came_meanwhile_is_not_made_anew(tmp_path: Path) -> None:
    """Between the look for it and the claim, which its maker has given back."""
    other, job, made = make_job(tmp_path), make_job(tmp_path), []

    @contextmanager
    def late(_: Path, name: str) -> Iterator[bool]:
        with mock.patch.object(engine, "claim", claim):
            other.work(body)
        yield True

    with mock.patch.object(engine, "claim", late):
        job.work(lambda number: made.append(number) or body(number))
    assert made == []


def test_a_worker_who_fails_gives_its_claim_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        make_job(tmp_path).work(lambda number: body(number // number))
    assert [path.name for path in tmp_path.iterdir()] == ["work.job.json"]


def test_what_is_finished_is_not_begun_anew(tmp_path: Path) -> None:
    """The shards have become something else and are gone."""
    made = []
    make_job(tmp_path).work(lambda n: made.append(n) or body(n), finished=lambda: len(made) > 2)
    assert made == [0, 1, 2]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"options": {"beam": 4}}, "--beam 5, not 4"),
        ({"options": {"beam": 5, "new_one": 1}}, "--new-one none, not 1"),
        ({"options": {}}, "--beam 5, not none"),
        ({"model": "abd"}, r"another model \(--path\)"),
        ({"sentences": 121}, "another sentences"),
    ],
)
def test_another_start_is_refused(changed: dict[str, Any], named: str, tmp_path: Path) -> None:
    make_job(tmp_path).work(body)
    before = contents(tmp_path)
    with pytest.raises(BulkError, match=named):
        make_job(tmp_path, **changed)
    assert contents(tmp_path) == before
    assert make_job(tmp_path, **{NOTES: "y"}).left() == []


@pytest.mark.parametrize("content", [b"", b"7", b"{", b'{"shards": "3", "sentences": 3}'])
def test_a_header_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "work.job.json").write_bytes(content)
    with pytest.raises(BulkError, match=r"work.job.json is not what was written"):
        make_job(tmp_path)


@pytest.mark.parametrize("number", range(20))
def test_a_damaged_shard_is_named(number: int, tmp_path: Path) -> None:
    """Cut anywhere, or any byte another one."""
    job = make_job(tmp_path)
    job.work(body)
    path, generator = job.shard_path(3), random.Random(number)
    content = bytearray(path.read_bytes())
    position = generator.randrange(len(content))
    if number % 2:
        content[position] ^= 1
    else:
        del content[position:]
    path.write_bytes(content)
    with pytest.raises(BulkError, match=r"work.3-of-12.shard"):
        job.read(3)
    assert job.read(4) == body(4)
    path.unlink()
    with pytest.raises(UnfinishedError, match="shard 3 of 12"):
        job.read(3)


def test_a_shard_of_another_place_is_refused(tmp_path: Path) -> None:
    job, other = make_job(tmp_path / "a"), make_job(tmp_path / "b", model="abd")
    for worker in (job, other):
        worker.work(body)
    for wrong in (job.shard_path(5), other.shard_path(3)):
        job.shard_path(3).write_bytes(wrong.read_bytes())
        with pytest.raises(BulkError, match="not what its name says"):
            job.read(3)


def test_a_full_disk_leaves_no_half_of_a_shard(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    with (
        mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")),
        pytest.raises(OSError, match="No space"),
    ):
        job.work(body)
    assert [path.name for path in tmp_path.iterdir()] == ["work.job.json"]


def test_progress(tmp_path: Path) -> None:
    """12 shards of 10 sentences; 4 were there; 5 of 8 were made in 20 s."""
    progress = Progress(make_job(tmp_path), left=8)
    assert progress.line(3, 20.0) == (
        "work: 9 of 12 shards are there, 2.5 sentences/s by all workers, 0:00:12 left"
    )
    assert progress.line(8, 20.0).endswith("unknown left")
    assert progress.line(3, 7323.4 * 5 / 3).endswith(", 2:02:03 left")


def test_reports_come_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with mock.patch("time.monotonic", side_effect=iter(range(0, 100, 4))):
        make_job(tmp_path).work(body)
    assert [line.split(" shards")[0] for line in caplog.messages] == [
        f"work: {number} of 12" for number in (3, 6, 9, 12)
    ]
    assert json.loads((tmp_path / "work.job.json").read_text()) == HEADER


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/shard'"):
        engine.write_durably(tmp_path / "shard", b"text")
    assert not list(tmp_path.iterdir())


def test_a_limit_of_size_is_told_with_the_output(tmp_path: Path) -> None:
    places = BulkPlaces(tmp_path / "in", tmp_path / "out")
    job = Job(places.parts, NAME, {"shards": 1, "sentences": 1})
    job.begin()
    job.work(lambda number: b"x" * 5000)
    with small_disk(1000), pytest.raises(OSError, match="File too large") as caught:
        merge(job, places)
    assert caught.value.filename == str(places.target) and not places.target.exists()
