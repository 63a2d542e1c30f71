"""distill.py and distill.sh as a user calls them, on a tiny random teacher."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fairseq.data import data_utils
from fairseq_cli import generate, train

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bulk.relevant import FilesBefore, relevant_options
from fairseq_aggdec.cli import distill as tool
from fairseq_aggdec.distill import distilled_folder
from fairseq_aggdec.distill.shards import collect
from fairseq_aggdec.jobs.claims import claim
from fairseq_aggdec.packed.files import CHECKPOINT
from fairseq_aggdec.stored.loading import ABOUT
from scripts import random_models
from tests.cli.commands import ROOT
from tests.cli.distilling import (
    LANGUAGES,
    LONGEST,
    OPTIONS,
    PAIR,
    arguments,
    contents,
    distill,
    write_folder,
)
from tests.support import make_dictionary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("distill"))


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Path:
    """Decoded and merged by one process, without interruption."""
    output = folder / "undisturbed"
    distill(folder, output)
    return output


def test_outputs_are_those_of_fairseq_generate(folder: Path, undisturbed: Path) -> None:
    options = ["--gen-subset", "train", "--skip-invalid-size-inputs-valid-test", *OPTIONS]
    options += ["--path", str(folder / "teacher1.pt"), "--required-batch-size-multiple", "1"]
    stdout = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["fairseq-generate", str(folder / "data"), *options]),
        redirect_stdout(stdout),
    ):
        generate.cli_main()
    expected = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", stdout.getvalue(), re.MULTILINE))
    collected = collect(undisturbed / "shards", "train")
    found = {
        str(output.sentence): distilled_folder.symbols(make_dictionary(), output.tokens.tolist())
        for output in collected.outputs
        if output is not None
    }
    assert found == expected
    assert len(set(found.values())) > 20
    cut = [output.cut for output in collected.outputs if output is not None]
    assert cut == [len(text.split()) == 12 for text in found.values()]
    assert 20 < sum(cut) < len(cut) - 20


def test_the_new_folder(folder: Path, undisturbed: Path) -> None:
    dictionary, data = make_dictionary(), folder / "data"
    lines = (undisturbed / "text" / "train.dropped.tsv").read_text().splitlines()
    dropped = {int(number): reason for number, reason, _ in (line.split("\t") for line in lines)}

    def load(path: Path, subset: str, language: str) -> list[list[int]]:
        name = str(path / f"{subset}.{PAIR}.{language}")
        return [row.tolist() for row in data_utils.load_indexed_dataset(name, dictionary)]

    sources = load(data, "train", random_models.SOURCE)
    too_long = [number for number, row in enumerate(sources) if len(row) > LONGEST]
    assert [number for number, reason in dropped.items() if reason == "too long"] == too_long
    kept = [row for number, row in enumerate(sources) if number not in dropped]
    assert load(undisturbed, "train", random_models.SOURCE) == kept
    assert any(dictionary.unk() in row for row in kept)
    assert len(load(undisturbed, "train", random_models.TARGET)) == len(kept)
    for subset in ("valid", "test"):
        for language in LANGUAGES:
            assert load(undisturbed, subset, language) == load(data, subset, language)
    summary = json.loads((undisturbed / "distillation.json").read_text())["subsets"]["train"]
    assert summary["kept"] == len(kept)
    assert sum(summary["dropped"].values()) == len(dropped)
    assert summary["dropped"]["too long"] == len(too_long) > 0
    assert summary["teacher"] == ["teacher1.pt"]
    assert summary["options"]["beam"] == 3


def test_fairseq_trains_on_it(undisturbed: Path, tmp_path: Path) -> None:
    options = ["--task", "translation", "--arch", "transformer_tiny", "--cpu", "--lr", "0.001"]
    options += ["--optimizer", "adam", "--max-update", "1", "--batch-size", "8", "--no-save"]
    options += ["--num-workers", "0", "--save-dir", str(tmp_path), "--no-progress-bar"]
    with mock.patch.object(sys, "argv", ["fairseq-train", str(undisturbed), *options]):
        train.cli_main()


def test_filters_and_other_methods(folder: Path, tmp_path: Path) -> None:
    """Two sets with one of our decoders; the filter changes without decoding anew."""
    more = ["--decoding", "iad", "--subsets", "valid", "test", "--beam", "1"]
    distill(folder, tmp_path, *more)
    before = {path: path.read_bytes() for path in (tmp_path / "shards").glob("*.shard")}
    for options in (["--keep-cut"], ["--keep-cut", "--max-length-ratio", "2"]):
        distill(folder, tmp_path, *more, "--merge", *options)
        summary = json.loads((tmp_path / "distillation.json").read_text())["subsets"]
        assert set(summary) == {"valid", "test"}
        dropped = summary["valid"]["dropped"]
        assert dropped["cut"] == 0
    assert sum(subset["dropped"]["length ratio"] for subset in summary.values()) > 0
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(SystemExit, match="no pair is left"):
        distill(folder, tmp_path, *more, "--merge", "--max-length-ratio", "0.1")
    name = f"train.{PAIR}.{random_models.TARGET}.bin"
    assert (tmp_path / name).read_bytes() == (folder / "data" / name).read_bytes()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--beam", "4"], "--beam 3, not 4"),
        (["--decoding", "greedy"], '--decoding "beam", not "greedy"'),
        (["--batch-size", "5"], "--batch-size 4, not 5"),
        (["--distributed-world-size", "2"], "--distributed-world-size 2 is not honoured here"),
        (["--path", "TEACHER2"], "another teacher"),
        (["--path", "nowhere.pt"], "--path: there is no file nowhere.pt"),
        (
            ["--decoding", "gad", "--draft-tokens", "auto", "--fp16"],
            "--fp16 does not go with --draft-tokens auto",
        ),
        (
            ["--decoding", "blockwise", "--draft-tree", "auto", "--acceptance", "min:2"],
            "--acceptance does not go with --draft-tree auto",
        ),
        (["--max-tokens", "9"], "--max-tokens 9"),
        (["--merge", "--subsets", "valid"], None),
    ],
)
def test_refusals(more: list[str], named: str | None, folder: Path, undisturbed: Path) -> None:
    """One sentence, and what is there stays; without one, there is nothing to merge yet."""
    before = contents(undisturbed)
    more = [str(folder / "teacher2.pt") if word == "TEACHER2" else word for word in more]
    with pytest.raises(SystemExit) as stopped:
        distill(folder, undisturbed, *more)
    if named is None:
        assert stopped.value.code == 3
    else:
        assert named in str(stopped.value)
        assert "\n" not in str(stopped.value)
    assert contents(undisturbed) == before


def test_tables_of_a_lattice_count_by_what_is_in_them(folder: Path, tmp_path: Path) -> None:
    """Made anew between two starts, they would give other outputs under the same name."""
    more = ["--decoding", "lattice", "--lattice", str(tmp_path)]
    given = arguments(folder, tmp_path / "output", *more)
    session = Session(tool.build_parser(), given, reads=["beam", "batch_size"])
    found = []
    for text in ("one", "two", "one"):
        (tmp_path / "header.json").write_text(text)
        found.append(relevant_options(session, FilesBefore(session.cfg))["lattice"])
    assert found[0] == found[2] != found[1]


def test_a_packed_drafter_counts_by_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    """Packed anew of another drafter between two starts, it would give other outputs under the same name."""
    (tmp_path / ABOUT).touch()
    more = ["--decoding", "nar", "--drafter-path", str(tmp_path)]
    given = arguments(folder, tmp_path / "output", *more)
    session = Session(tool.build_parser(), given, reads=["beam", "batch_size"])
    found = []
    for text in ("one", "two", "one"):
        (tmp_path / CHECKPOINT).write_text(text)
        found.append(relevant_options(session, FilesBefore(session.cfg))["drafter_path"])
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("name", ["teacher1.pt", "data/dict.source.txt", "data/dict.target.txt"])
def test_a_file_that_is_replaced_while_it_is_loaded(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """The header would name the new file, and the first shards be the old one's."""
    copy = shutil.copytree(folder, tmp_path / "copy")

    def batches(*given: Any) -> Any:
        shutil.copy(copy / name, copy / "new")
        (copy / "new").replace(copy / name)
        return make_batches(*given)

    make_batches = tool.make_batches
    with mock.patch.object(tool, "make_batches", batches), pytest.raises(SystemExit) as stopped:
        distill(copy, tmp_path / "output")
    assert f"{copy / name} was replaced while it was being loaded" in str(stopped.value)
    assert not list((tmp_path / "output").rglob("*.json"))


def test_other_data_is_refused(folder: Path, undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "data", tmp_path / "data")
    shutil.copy(folder / "teacher1.pt", tmp_path)
    shutil.copytree(undisturbed / "shards", tmp_path / "new" / "shards")
    distill(tmp_path, tmp_path / "new", "--merge")
    for path in (tmp_path / "data").glob("valid.*"):
        shutil.copy(path, path.with_name(path.name.replace("valid", "train")))
    for more in ([], ["--merge"]):
        with pytest.raises(SystemExit, match="DATA"):
            distill(tmp_path, tmp_path / "new", *more)


# -- what is not distillation's own


def contents_of(folder: Path) -> dict[str, bytes | str]:
    """Every file by its name, and where links lead to."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def refused(folder: Path, output: Path, *more: str) -> str:
    """What distill.py says, in one line, when it stops."""
    with pytest.raises(SystemExit) as stopped:
        distill(folder, output, *more)
    assert "\n" not in str(stopped.value)
    return str(stopped.value)


# -- more than one process


def test_one_process_merges(
    folder: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(undisturbed / "shards", tmp_path / "shards")
    with ExitStack() as stack:
        assert stack.enter_context(claim(tmp_path / "shards", "merge"))
        assert "another process makes" in refused(folder, tmp_path, "--merge")
        waited = mock.Mock(side_effect=lambda seconds: stack.close())
        with mock.patch("fairseq_aggdec.jobs.claims.time.sleep", waited):
            # The other one ends while this one waits, and has made nothing.
            distill(folder, tmp_path)
    waited.assert_called_once()
    assert "another process makes" in capsys.readouterr().out
    assert contents(tmp_path) == contents(undisturbed)
    written = (tmp_path / "distillation.json").stat().st_ino
    distill(folder, tmp_path)  # one who comes late
    assert "is made already" in capsys.readouterr().out
    assert (tmp_path / "distillation.json").stat().st_ino == written
    distill(folder, tmp_path, "--keep-cut")
    assert contents(tmp_path) != contents(undisturbed)


# -- distill.sh


def shell_refuses(*arguments: str | Path, **environment: str) -> str:
    """What distill.sh says when it stops before it starts anything."""
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "distill.sh"), *map(str, arguments)],
        env={**os.environ, "PYTHON": "false", "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_usage() -> None:
    assert shell_refuses("--path", "x").startswith("error: usage:")


@pytest.mark.parametrize(
    ("name", "value"),
    [("PROCESSES", "abc"), ("PROCESSES", "0"), ("SHARDS", "2"), ("FIRST", "1")],
)
def test_numbers_of_processes(name: str, value: str, tmp_path: Path) -> None:
    numbers = {"PROCESSES": "2", name: value}
    said = shell_refuses("data", tmp_path / "new", "--cpu", **numbers)
    assert (f"{name}={value}" if name == "PROCESSES" else "SHARDS and FIRST") in said
    assert not (tmp_path / "new").exists()


def test_the_shell_writes_nothing_into_a_folder_of_somebody_else(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for path in (data, other):
        path.mkdir()
        (path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(data)
    before = contents_of(tmp_path)
    assert "is DATA" in shell_refuses(data, data, "--cpu")
    assert "is DATA" in shell_refuses(data, tmp_path / "link", "--cpu")
    assert "did not write" in shell_refuses(data, other, "--cpu")
    assert contents_of(tmp_path) == before
