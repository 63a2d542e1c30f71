"""Texts cut into shards: every line once, wherever one begins to read; memory does not grow with the text."""

from __future__ import annotations

import gzip
import json
import math
import random
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_aggdec.bulk import translation
from fairseq_aggdec.bulk.text import Text, make_index
from fairseq_aggdec.bulk.translation import NAME, BulkPlaces, LineTranslator
from fairseq_aggdec.jobs import job
from fairseq_aggdec.jobs.job import BulkError, Job

ODD = ["", " ", "\u2028", "слово", "\r", "\x0b\x1c", "a\tb", "🙂" * 9]


def random_lines(seed: int, count: int) -> list[str]:
    generator = random.Random(seed)
    return [generator.choice([*ODD, "w" * generator.randint(1, 50)]) for _ in range(count)]


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    content = ("\n".join(lines) + end).encode() if lines else b""
    if path.suffix == ".gz":
        content = gzip.compress(content)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["in", "in.gz"])
@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (9, 3), (10, 3), (100, 7), (5, 50)])
def test_every_line_once(name: str, count: int, size: int, tmp_path: Path) -> None:
    lines = random_lines(count, count)
    path = write(tmp_path / name, lines)
    index = make_index(path, size)
    assert (index.lines, index.shards) == (count, -(-count // size))
    order = list(range(index.shards)) * 2  # back, too
    random.Random(1).shuffle(order)
    text = Text(path, index)
    for shard in order:
        assert text.lines(shard) == lines[shard * size : (shard + 1) * size]
    text.close()


@pytest.mark.parametrize("name", ["in", "in.gz"])
def test_the_last_line_needs_no_end(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, ["a", "b", "c"], end="")
    index = make_index(path, 2)
    assert index.lines == 3
    assert Text(path, index).lines(1) == ["c"]


def test_the_same_text_has_the_same_digest(tmp_path: Path) -> None:
    lines = random_lines(3, 50)
    digests = {make_index(write(tmp_path / name, lines), 7).sha256 for name in ("a", "a.gz")}
    assert len(digests) == 1
    assert make_index(write(tmp_path / "b", [*lines, ""]), 7).sha256 not in digests


def test_a_compressed_text_is_whole_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "in.gz", ["one", "two"] * 50)
    whole = path.read_bytes()
    for content in [*(whole[:size] for size in range(len(whole))), b"no archive", whole + b"x"]:
        path.write_bytes(content)
        with pytest.raises(BulkError, match=r"in\.gz is damaged"):
            make_index(path, 7)
    path.write_bytes(whole + b"\0" * 512)  # blocks that are filled up
    assert make_index(path, 7).lines == 100


def test_a_text_that_changes_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "in", ["a", "b", "c", "d"])
    index = make_index(path, 2)
    write(path, ["a", "b", "c", "e"])
    assert Text(path, index).lines(0) == ["a", "b"]
    with pytest.raises(BulkError, match="was changed while"):
        Text(path, index).lines(1)


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\nc", ["a", "b", "c"]),
        (b"\nb\n", ["", "b"]),
        (b"", []),
        (b"a\n" + MARK + b"b\n", ["a", "\ufeffb"]),  # there it is a character
    ],
)
@pytest.mark.parametrize("name", ["in", "in.gz"])
def test_a_byte_order_mark_belongs_to_no_line(
    name: str, content: bytes, lines: list[str], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(MARK + content) if name == "in.gz" else MARK + content)
    index = make_index(path, 2)
    text = Text(path, index)
    for shard in (*range(index.shards), *range(index.shards)):
        assert text.lines(shard) == lines[2 * shard : 2 * shard + 2]
    (tmp_path / "plain").write_bytes(content)
    assert index.sha256 == make_index(tmp_path / "plain", 2).sha256
    assert index.lines == len(lines)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"ab\nc\xffd\n", "line 2 is not UTF-8: byte 4 of the text is 0xff"),
        (MARK + b"\xe2\x28\n", "line 1 is not UTF-8: byte 3 of the text is 0xe2"),
        ("ab\n".encode("utf-16"), "line 1 is not UTF-8: byte 0 .* as UTF-16 does"),
    ],
)
def test_what_is_not_utf_8_is_named_with_its_place(
    content: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(content)
    with pytest.raises(BulkError, match=says):
        make_index(tmp_path / "in", 2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("o.jsonl", True),
        ("o.jsonl.gz", True),
        ("o.txt", False),
        ("o.jsonl.txt", False),
        ("jsonl", False),
    ],
)
def test_json_lines_by_name(name: str, expected: bool) -> None:
    assert BulkPlaces(Path("in"), Path(name)).json_lines == expected


def test_a_digest_that_is_none_trusts_nothing(tmp_path: Path) -> None:
    """The output is somebody's, and stays."""
    places = BulkPlaces(write(tmp_path / "in", ["a"]), tmp_path / "out")
    places.parts.mkdir()
    for name in ("text.job.json", "merged.json"):
        (places.parts / name).write_text("{")
    places.check()
    places.target.write_text("precious")
    with pytest.raises(BulkError, match="exists and is not ours"):
        places.check()


def test_impossible_outputs_are_json() -> None:
    """JSON has no infinity."""
    ranked = [SimpleNamespace(text="a", score=score) for score in (-0.5, -math.inf, math.nan)]
    translate = LineTranslator(SimpleNamespace(), None, None, False, json_lines=True)
    line = json.loads(translate._line("b", 0, ranked), parse_constant=pytest.fail)
    assert [one["score"] for one in line["hypotheses"]] == [-0.5, None, None]


class Shouting(LineTranslator):
    """Stands in for a model: what is measured is the rest."""

    def __init__(self) -> None:
        self.translator = type("Nothing", (), {"generator": None})()

    def __call__(self, lines: list[str], first: int) -> bytes:
        return "".join(f"{first + i} {line.upper()}\n" for i, line in enumerate(lines)).encode()


def shout(folder: Path, count: int) -> int:
    """Peak of the memory, in bytes, that all of the work on so many lines takes."""
    folder.mkdir()
    path = write(folder / "in", [f"line {number}" for number in range(count)])
    places = BulkPlaces(path, folder / "out")
    tracemalloc.start()
    index = make_index(path, 500)
    job = Job(places.parts, NAME, {"shards": index.shards, "sentences": count})
    job.begin()
    translation.work(job, places, Text(path, index), Shouting(), seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with places.target.open() as out:
        assert sum(line == f"{i} LINE {i}\n" for i, line in enumerate(out)) == count
    return peak


def test_memory_does_not_grow_with_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "REPORT", math.inf)  # on a slow machine the log takes memory
    shout(tmp_path / "first", 1_000)  # imports
    assert shout(tmp_path / "large", 60_000) < 1.3 * shout(tmp_path / "small", 6_000)
