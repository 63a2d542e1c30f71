"""aggdec-generate --input-file: fairseq-interactive's output of a text."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fairseq_aggdec.bulk import command, translation
from fairseq_aggdec.bulk.command import OPTIONS as FILES
from fairseq_aggdec.cli import fairseq_commands, refusals
from fairseq_aggdec.jobs.claims import claim
from tests.cli.translating import LINES, main, shards, stock, stock_output, translate, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("translate"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> bytes:
    return stock_output(folder)


# -- what is written


@pytest.mark.parametrize("decoding", ["beam", "stock"])
def test_a_file(decoding: str, folder: Path, expected: bytes, tmp_path: Path) -> None:
    translate(folder, tmp_path / "out", "--decoding", decoding)
    assert (tmp_path / "out").read_bytes() == expected
    left = {path.name for path in tmp_path.rglob("*")}
    assert left == {"out", "out.parts", "text.job.json", "merged.json"}


def test_compressed(folder: Path, expected: bytes, tmp_path: Path) -> None:
    text = (folder / "text").read_bytes()
    # As `cat a.gz b.gz` does.
    (folder / "text.gz").write_bytes(gzip.compress(text[:500]) + gzip.compress(text[500:]))
    for name in ("out.gz", "again.gz"):
        translate(folder, tmp_path / name, source="text.gz")
    written = (tmp_path / "out.gz").read_bytes()
    assert written == (tmp_path / "again.gz").read_bytes()
    assert gzip.decompress(written) == expected


def test_long_sources_are_cut_as_those_of_a_set(folder: Path, tmp_path: Path) -> None:
    lines = ["w1 " * 4, "w2 w3 " * 5 + "w4 w5 w6", "w7"]
    (folder / "long lines").write_text("".join(line + "\n" for line in lines))
    cut = [" ".join(line.split()[:9]) for line in lines]
    (folder / "cut lines").write_text("".join(line + "\n" for line in cut))
    more = ["--truncate-source", "--max-source-positions", "10"]
    translate(folder, tmp_path / "long", *more, source="long lines")
    translate(folder, tmp_path / "cut", source="cut lines")
    assert (tmp_path / "long").read_bytes() == (tmp_path / "cut").read_bytes()


def test_hypotheses_as_json_lines(folder: Path, tmp_path: Path) -> None:
    translate(folder, tmp_path / "out.jsonl", "--nbest", "2")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().split("\n")[:-1]]
    sources = (folder / "text").read_bytes().decode().split("\n")
    assert [line["source"] for line in lines] == sources
    assert [line["line"] for line in lines] == list(range(1, LINES + 1))
    found = [(n, one["text"]) for n, line in enumerate(lines) for one in line["hypotheses"]]
    printed = stock(folder, "--nbest", "2").stdout.splitlines()
    rows = [line.removeprefix("D-").split("\t", 2) for line in printed if line.startswith("D-")]
    assert found == [(int(number), text) for number, _, text in rows]
    scores = [one["score"] for line in lines for one in line["hypotheses"]]
    base2 = [float(score) for _, score, _ in rows]
    assert scores == pytest.approx([score * 0.6931471805599453 for score in base2], abs=1e-4)


def test_token_batches_and_an_empty_text(folder: Path, expected: bytes, tmp_path: Path) -> None:
    options = ["--max-tokens", "64", "--batch-size", "9"]
    translate(folder, tmp_path / "out", *options)
    assert (tmp_path / "out").read_bytes() == expected
    (folder / "empty").write_bytes(b"")
    translate(folder, tmp_path / "none", source="empty")
    assert (tmp_path / "none").read_bytes() == b""


def test_lines_that_are_too_long(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "long").write_text("w1\n" + "w2 " * 50 + "\nw3\n")
    assert main(folder, tmp_path / "out", source="long") == refusals.REFUSED
    assert "line 2 of the input has 51 tokens" in capsys.readouterr().err
    translate(folder, tmp_path / "out", "--skip-invalid-size-inputs-valid-test", source="long")
    first, second, third, end = (tmp_path / "out").read_text().split("\n")
    assert first and third and not second and not end


@pytest.mark.parametrize("name", ["model1.pt", "codes"])
def test_a_file_that_is_replaced_while_it_is_loaded(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The header would name the new file, and the first shards be the old one's."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "codes").write_text("#version: 0.2\n")

    def loaded(session: Any) -> None:
        shutil.copy(copy / name, copy / "new")
        (copy / "new").replace(copy / name)

    with mock.patch.object(command, "make_translator", loaded):
        codes = str(copy / "codes")
        given = ["--bpe", "subword_nmt", "--bpe-codes", codes]
        assert main(copy, tmp_path / "out", *given) == refusals.REFUSED
    assert f"{copy / name} was replaced while it was being loaded" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# -- what is done already


def test_learned_drafts_change_nothing(folder: Path, tmp_path: Path) -> None:
    """Outputs that depend on how long the drafts are, by one process and by shards of several, one by one."""
    more = ["--decoding", "iad", "--beam", "1", "--acceptance", "top-beta:20:9"]
    translate(folder, tmp_path / "whole", *more)
    target = tmp_path / "again"
    with mock.patch.object(translation, "merge", side_effect=KeyboardInterrupt):
        assert main(folder, target, *more) == 130
    for name in shards(target)[::2]:
        (tmp_path / "again.parts" / name).unlink()
    translate(folder, target, *more)
    assert target.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("moment", ["written", "named"])
def test_a_killed_merge_is_repeated(
    moment: str, folder: Path, expected: bytes, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    name = "write_durably" if moment == "written" else "sync"
    with mock.patch.object(translation, name, side_effect=KeyboardInterrupt):
        assert main(folder, target) == 130
    assert target.exists() == (moment == "named")
    translate(folder, target)
    assert target.read_bytes() == expected
    assert not shards(target)


def test_who_comes_late_changes_nothing(folder: Path, expected: bytes, tmp_path: Path) -> None:
    target = tmp_path / "out"
    translate(folder, target)
    before = target.stat().st_ino, target.stat().st_mtime_ns
    with mock.patch("fairseq_aggdec.api.translator.Translator.decode_tokens", None):
        log = translate(folder, target).log
    assert f"{target} is complete: {LINES} lines" in log
    assert (target.stat().st_ino, target.stat().st_mtime_ns) == before
    target.unlink()  # to have it once more
    translate(folder, target)
    assert target.read_bytes() == expected


def test_one_worker_writes_the_output_and_others_wait_for_it(
    folder: Path, unmerged: Path, expected: bytes, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    begun(unmerged, tmp_path)
    with ExitStack() as stack:
        stack.enter_context(claim(tmp_path / "out.parts", "merge"))

        def end(seconds: float) -> None:
            assert not target.exists()
            stack.close()

        with mock.patch("fairseq_aggdec.jobs.claims.time.sleep", end):
            log = translate(folder, target).log
    assert any("another worker writes" in line for line in log)
    assert target.read_bytes() == expected


# -- refusals


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda tmp: (tmp / name).write_bytes(content)


@pytest.fixture(scope="module")
def unmerged(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was ended when all was decoded and nothing written."""
    place = tmp_path_factory.mktemp("unmerged")
    with mock.patch.object(translation, "merge", side_effect=KeyboardInterrupt):
        assert main(folder, place / "out") == 130
    return place


def begun(unmerged: Path, tmp: Path) -> None:
    shutil.copytree(unmerged, tmp, dirs_exist_ok=True)


def spoil(unmerged: Path, tmp: Path) -> None:
    begun(unmerged, tmp)
    path = sorted((tmp / "out.parts").glob("*.shard"))[5]
    path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("more", "says", "make"),
    [
        ([], "out.parts is in the way", put("out.parts", b"precious")),
        (["--input-file", "{tmp}"], "is a folder, name a file", None),
        (["--input-file", "{tmp}/bad"], "line 2 is not UTF-8", put("bad", b"w1\n\xff\n")),
        (["--input-file", "{tmp}/a.gz"], "a.gz is damaged", put("a.gz", gzip.compress(b"w")[:-5])),
        (["--input-file", "{tmp}/a.gz"], "a.gz is damaged", put("a.gz", b"no archive")),
        (["--input-file", "{tmp}/a.gz"], "it is empty", put("a.gz", b"")),
        (["--input-file", "{tmp}/x"], "line 1 has more than", put("x", b"w" * (1 << 20))),
        (["--nbest", "3"], "--nbest 3: it must be 1 to --beam, 2", None),
        (["--beam", "0"], "--beam 0: it must be at least 1", None),
        (["--batch-size", "0"], "--batch-size 0: it must be at least 1", None),
        (
            ["--prefix-size", "1"],
            "--prefix-size 1 is not honoured here: a text has no targets",
            None,
        ),
        (
            [*("--decoding", "gad", "--draft-tree", "auto"), *("--acceptance", "top-beta")],
            "--acceptance does not go with --draft-tree auto",
            None,
        ),
        (["--nope"], "unrecognized arguments: --nope", None),
        (["--input-file", "-"], "there is no file -", None),
        (["--beam", "1"], "--beam 2, not 1", begun),
        (["--path", "{folder}/model2.pt"], "another model (--path)", begun),
        (["--input-file", "{folder}/dict.source.txt"], "--input-file", begun),
        (["--shard-size", "9"], "--shard-size 8, not 9", begun),
        ([], "is not what was written there", spoil),
    ],
)
def test_refusals(
    more: list[str],
    says: str,
    make: Any,
    folder: Path,
    unmerged: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence, before any work, and all that is there stays as it is."""
    if make is not None:
        make(*([unmerged] if make in (begun, spoil) else []), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    given = [word.format(tmp=tmp_path, folder=folder) for word in more]
    with mock.patch("fairseq_aggdec.api.translator.Translator.decode_tokens", None):
        assert main(folder, tmp_path / "out", *given) == refusals.REFUSED
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("aggdec-generate: error: ") and says in line
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_the_options_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(sys, "argv", ["any", "--help"]):
        assert fairseq_commands.generate() == 0
    shown = capsys.readouterr().out
    for option in (*FILES, "--shard-size"):
        assert f"  {option} " in shown
