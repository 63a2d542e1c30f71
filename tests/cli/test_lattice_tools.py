"""Lattice tools through their real command lines: alignment, tables, recall, and what they refuse."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from fairseq_cli import preprocess

from fairseq_aggdec.cli import lattice_tables
from fairseq_aggdec.lattice.alignment.corpus import BinarisedPairs
from fairseq_aggdec.lattice.candidates import CandidateModel
from scripts.recipes.lattice import recall_table
from tests.support import random_sources

ROOT = Path(__file__).resolve().parents[2]
Main = Callable[[Sequence[str]], None]
TABLES, RECALL = lattice_tables.main, recall_table.main
# A program with the options of fast_align: word t comes from word t.
DIAGONAL = """
import sys
for line in open(sys.argv[sys.argv.index("-i") + 1]):
    print(*(f"{t}-{t}" for t in range(len(line.split(" ||| ")[1].split()))))
"""


def run(main: Main, *arguments: str | Path) -> str:
    """What a command that succeeds prints; in this process, which is quicker."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        main([str(argument) for argument in arguments])
    return printed.getvalue()


def refused(main: Main, *arguments: str | Path) -> str:
    """The last line of what a command that fails says."""
    errors = io.StringIO()
    with redirect_stderr(errors), pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    said = stopped.value.code
    assert said, "it ended well"
    return said if isinstance(said, str) else errors.getvalue().strip().splitlines()[-1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarised pairs whose targets are the sources word by word, each source word with one target word; some empty."""
    folder = tmp_path_factory.mktemp("lattice")
    for split, count in (("train", 300), ("valid", 40)):
        rows = [[], *random_sources(count, count), [5]]
        sources = [" ".join(f"s{word}" for word in row) for row in rows]
        targets = [" ".join(f"t{word}" for word in row) for row in rows]
        targets[-1] = ""
        (folder / f"{split}.src").write_text("\n".join(sources) + "\n")
        (folder / f"{split}.tgt").write_text("\n".join(targets) + "\n")
    arguments = shlex.split(
        f"-s src -t tgt --trainpref {folder / 'train'} --validpref {folder / 'valid'} --destdir {folder / 'data'}"
    )
    preprocess.main(preprocess.options.get_preprocessing_parser().parse_args(arguments))
    return folder / "data"


@pytest.fixture(scope="module")
def tables(data: Path) -> str:
    """What the script that made the tables of ``data`` said."""
    program = data.parent / "fast_align"
    program.write_text(f"#!{sys.executable}\n{DIAGONAL}")
    program.chmod(0o755)
    aligner = ["--fast-align", str(program), "--symmetrisation", "forward"]
    return run(TABLES, data, "--held-out", "10", *aligner)


def test_tables_hold_the_translations(data: Path, tables: str) -> None:
    assert "302 sentence pairs" in tables
    pairs = BinarisedPairs(data, "valid")
    assert pairs.languages == ("src", "tgt")
    model = CandidateModel.open(pairs.folder, *pairs.dictionaries)
    source, target = (Dictionary.load(str(data / f"dict.{side}.txt")) for side in ("src", "tgt"))
    sentence = torch.tensor([[source.index(word) for word in ("s7", "s20", "s11")]])
    lattice = model.lattice(sentence, 8, "interpolated", window=0)
    best = lattice.read(lattice.search().choices)[0].tolist()
    assert [target[token] for token in best[:3]] == ["t7", "t20", "t11"]
    header = json.loads((pairs.folder / "header.json").read_text())
    assert header["command"].startswith("aggdec lattice-tables")
    assert header["pairs"] == 302
    assert header["held_out"]["pairs"] == 10
    assert header["length"]["slope"] == pytest.approx(1, abs=0.01)


def test_links_of_ones_own_give_the_same_tables(data: Path, tables: str, tmp_path: Path) -> None:
    folder = data / "lattice.src-tgt"
    run(TABLES, data, "--held-out", "10", "--links", folder / "links.txt", "--output", tmp_path)
    for path in folder.glob("*.npy"):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_recall_is_written_with_what_it_was_measured_on(
    data: Path, tables: str, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "recall"
    printed = run(RECALL, data, "--candidates", "1", "4", "40", "--output", output, "--cpu")
    record = json.loads(output.with_suffix(".json").read_text())
    assert set(record["recall"]) == {"counts (none)", "interpolated", "shared vocabulary"}
    for curve in record["recall"].values():
        assert list(curve) == ["1", "4", "40"]
        assert curve["1"] <= curve["4"] <= curve["40"] <= 1
    assert record["recall"]["interpolated"]["40"] > 0.95
    assert record["recall"]["interpolated"]["1"] > record["recall"]["shared vocabulary"]["1"]
    assert record["tables"]["held_out"]["pairs"] == 10
    assert record["command"].startswith("python -m scripts.recipes.lattice.recall_table")
    assert printed.strip() in output.with_suffix(".md").read_text()
    assert "<svg" in output.with_suffix(".svg").read_text()


def test_what_is_missing_is_named(data: Path, tmp_path: Path) -> None:
    assert "nowhere is not a folder" in refused(TABLES, tmp_path / "nowhere")
    assert "test.src-tgt.src.idx does not exist" in refused(TABLES, data, "--split", "test")
    assert "dict.en.txt does not exist" in refused(TABLES, data, "-s", "en", "-t", "de")
    assert "--top: 0: it must be a whole number of at least 1" in refused(
        TABLES, data, "--top", "0"
    )
    assert "links'" in refused(TABLES, data, "--links", tmp_path / "links")
    missing = tmp_path / "tables"
    line = refused(RECALL, data, "--tables", missing, "--output", tmp_path / "recall")
    assert "tables holds no lattice tables" in line
    assert "no program gone" in refused(TABLES, data, "--fast-align", "gone", "--output", missing)


def test_links_of_other_data_are_refused(data: Path, tables: str, tmp_path: Path) -> None:
    lines = (data / "lattice.src-tgt" / "links.txt").read_text().splitlines()
    for kept, message in (
        (lines[:-1], "has 301 lines for 302 sentence pairs"),
        ([*lines, ""], "has more lines than there are sentence pairs (302)"),
        (["0-0", *lines[1:]], "sentence pair 1 has 0 source and 0 target tokens but the link 0-0"),
    ):
        (tmp_path / "links").write_text("\n".join(kept) + "\n")
        found = refused(TABLES, data, "--links", tmp_path / "links", "--output", tmp_path / "out")
        assert found.endswith(message)
    assert not (tmp_path / "out" / "header.json").exists()
