"""A worker stands still at any moment, for longer than its lease; another one does all the work; the first goes on."""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
import zstandard

from fairseq_aggdec.bulk import translation
from fairseq_aggdec.bulk.text import Text, make_index
from fairseq_aggdec.bulk.translation import NAME, BulkPlaces
from fairseq_aggdec.distill import output_folder
from fairseq_aggdec.distill.distillation import DistillationError
from fairseq_aggdec.jobs import claims
from fairseq_aggdec.jobs import job as engine
from fairseq_aggdec.jobs.claims import Claims
from fairseq_aggdec.jobs.job import BulkError, Job
from tests.moments import at_moment
from tests.unit.test_bulk_text import Shouting

LINES = [f"line {number}" for number in range(7)]
EXPECTED = "".join(f"{number} LINE {number}\n" for number in range(7)).encode()
UNPACK = {
    "out": bytes,
    "out.gz": gzip.decompress,
    "out.zst": lambda content: zstandard.ZstdDecompressor().decompress(content, 1 << 20),
}


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    with mock.patch.object(claims, "POLL", 0.001), mock.patch.object(engine, "POLL", 0.001):
        yield


def shout(folder: Path, name: str, lease: float) -> None:
    """A worker. With a lease of 0 it takes over whatever it meets; with a long one it gives no signs of life here."""
    places = BulkPlaces(str(folder / "in"), folder / name)
    places.check()
    index = make_index(folder / "in", 2)
    header = {"shards": index.shards, "sentences": index.lines}
    job = Job(places.parts, NAME, header, lease)
    job.begin()
    translation.work(job, places, Text(folder / "in", index), Shouting(), seed=1)


@pytest.mark.parametrize("name", UNPACK)
def test_a_text_at_every_moment(name: str, tmp_path: Path) -> None:
    number, ended = 0, False
    while not ended:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "in").write_text("\n".join(LINES))
        with at_moment(folder / name, number, lambda: shout(folder, name, 0)) as events:  # noqa: B023
            shout(folder, name, 1000)
        ended = len(events) < number
        assert UNPACK[name]((folder / name).read_bytes()) == EXPECTED
        left = {path.name for path in (folder / f"{name}.parts").iterdir()}
        assert left == {"text.job.json", "merged.json"}, (number, events)
    assert number > 40


def test_the_place_has_another_job_by_then(tmp_path: Path) -> None:
    """Its user has taken the output away and begun anew while a worker of the first job stood still while tidying."""
    (tmp_path / "in").write_text("\n".join(LINES))
    parts = tmp_path / "out.parts"

    def anew() -> None:
        shout(tmp_path, "out", 0)
        (tmp_path / "out").unlink()
        for path in parts.iterdir():
            path.unlink()
        (parts / "text.0-of-4.shard").write_text("of the next job")

    def clean(job: Job, places: BulkPlaces) -> None:
        anew()
        finish(job, places)

    finish = translation.clean
    with mock.patch.object(translation, "clean", side_effect=[None, None]) as mocked:
        mocked.side_effect = lambda job, places: (
            setattr(mocked, "side_effect", finish),
            clean(job, places),
        )
        shout(tmp_path, "out", 1000)
    assert (parts / "text.0-of-4.shard").read_text() == "of the next job"


def put(folder: Path, content: str, holders: list[str]) -> None:
    """An attempt to make a data folder of three files and a summary, by the last of those who have held the claim."""
    holders.append(content)
    output_folder.fence(folder)
    with output_folder.attempt(folder, lambda: holders[-1] == content) as partial:
        for name in ("a", "b", output_folder.SUMMARY, "text/c"):
            (partial / name).write_text(content)
        output_folder.take_over(partial, folder)


@pytest.mark.parametrize("again", [False, True])
def test_a_data_folder_at_every_moment(again: bool, tmp_path: Path) -> None:
    """Attempts of different contents do not mix: all files are of the one that began last."""
    number, ended = 0, False
    while not ended:
        number += 1
        folder = tmp_path / str(number)
        (folder / "shards").mkdir(parents=True)
        holders: list[str] = []
        if again:
            put(folder, "before", holders)
        second = functools.partial(put, folder, "second", holders)
        with at_moment(folder, number, second) as events, suppress(OSError):
            put(folder, "first", holders)
        ended = len(events) < number
        files = [path for path in folder.rglob("*") if path.is_file()]
        contents = {p.read_text() for p in files if p.name != output_folder.MERGED}
        assert contents == {"first" if ended else "second"}, (number, events)
        names = {str(path.relative_to(folder)) for path in files}
        assert names == {"a", "b", "text/c", output_folder.SUMMARY, "shards/merged.json"}
        own = json.loads((folder / "shards" / "merged.json").read_text())
        assert set(own) == names - {"shards/merged.json"}
    assert number > 10


# -- links


@pytest.mark.parametrize("name", ["output.partial", "output.link.partial", "merged.json"])
def test_links_in_the_parts_are_not_followed(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n".join(LINES))
    (tmp_path / "precious").write_text("precious")
    shout(tmp_path, "out", 1000)
    (tmp_path / "out").unlink()
    path = tmp_path / "out.parts" / name
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "precious")
    shout(tmp_path, "out", 1000)
    assert (tmp_path / "out").read_bytes() == EXPECTED
    assert (tmp_path / "precious").read_text() == "precious"


def test_an_output_that_came_meanwhile_stays(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n".join(LINES))
    come = lambda: (tmp_path / "out").write_text("precious")  # noqa: E731
    with (
        mock.patch.object(translation, "take_away", lambda *_: come()),
        pytest.raises(BulkError, match="has come while"),
    ):
        shout(tmp_path, "out", 1000)
    assert (tmp_path / "out").read_text() == "precious"


def test_a_file_system_without_links(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n".join(LINES))
    with mock.patch.object(Path, "hardlink_to", side_effect=OSError(95, "not supported")):
        shout(tmp_path, "out", 1000)
    assert (tmp_path / "out").read_bytes() == EXPECTED
    assert not list((tmp_path / "out.parts").glob("*.partial"))


def test_a_link_among_the_attempts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "merge.x.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DistillationError, match="symbolic link"):
        output_folder.fence(tmp_path)
    assert os.path.isdir(tmp_path / "elsewhere")


# -- claims that are lost


def lose(folder: Path, name: str) -> None:
    """Somebody takes a claim over, and gives it back."""
    other = Claims(folder, lease=0)
    for mine in (False, True):
        with other.take(name) as taken:
            assert taken == mine


def test_a_lost_claim(tmp_path: Path) -> None:
    first, second = Claims(tmp_path, 1000), Claims(tmp_path, 0)
    with first.take("a") as mine:
        assert mine and first.holds("a")
        with second.take("a") as mine:
            assert not mine and first.holds("a")
        with second.take("a") as mine:
            assert mine and second.holds("a") and not first.holds("a")
        assert not first.holds("a")
        assert list(tmp_path.iterdir()) == []
        with second.take("a") as mine:
            assert mine and not first.holds("a")
            first._give_back("a")
            first.held["a"] = os.open(tmp_path / "a.0.claim", os.O_RDONLY), 0
            assert second.holds("a")


def test_who_loses_a_claim_looks_again(tmp_path: Path) -> None:
    claims, done, tries = Claims(tmp_path, 1000), [], []

    def make() -> None:
        if done:
            return
        tries.append(1)
        lose(tmp_path, "a")
        done.append(1)
        raise FileNotFoundError

    claims.settle("a", lambda: bool(done), make, lambda: None)
    assert len(tries) == 1
    with pytest.raises(ZeroDivisionError):
        claims.settle("a", lambda: False, lambda: 1 // 0, lambda: None)
    assert list(tmp_path.iterdir()) == []


def test_tidying_leaves_what_a_living_worker_writes(tmp_path: Path) -> None:
    job = Job(tmp_path, "work", {"shards": 2, "sentences": 2})
    job.begin()
    partial = tmp_path / "work.1-of-2.shard.abc.partial"
    partial.write_text("half")
    with Claims(tmp_path, 1000).take("work.1-of-2"):
        job.tidy()
        assert {path.name for path in tmp_path.iterdir()} == {
            "work.job.json",
            "work.1-of-2.0.claim",
            partial.name,
        }
    job.tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["work.job.json"]
