"""scripts/recipes/interleaved/figures.py as a user calls it, on random models."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.cli.commands import CUT, PLUGIN, Trained
from tests.cli.test_interleaved import train_writer
from tests.cli.test_tools import script


@pytest.fixture(scope="module")
def writers(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with one and with two words per direction."""
    folder = tmp_path_factory.mktemp("writers")
    for words in ("1", "2"):
        train_writer(
            trained,
            folder / words,
            *("--words-per-direction", words, "--no-epoch-checkpoints"),
            updates=1,
        )
    return {words: folder / words / "checkpoint_last.pt" for words in ("1", "2")}


def run(trained: Trained, *more: str) -> None:
    arguments = [str(trained.data), *PLUGIN[:2], "--path", str(trained.checkpoint), "--cpu", *CUT]
    script("scripts.recipes.interleaved.figures").main([*arguments, *more])


def test_tables_and_plots(trained: Trained, writers: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "figures"
    options = ["--model", f"IB={writers['1']}", "--model", f"SA={writers['2']}", "--limit", "12"]
    options += ["--beams", "1", "2", "--batch-sizes", "1", "4", "--bins", "3", "--beam", "2"]
    options += ["--min-len", "3"]
    run(trained, *options, "--variant", "dedup=2", "--output", str(output))
    record = json.loads(output.with_suffix(".json").read_text())
    batch, length, words = (record["results"][name] for name in ("batch", "length", "words"))
    stock, engine, names = "Transformer, fairseq", "Transformer, this engine", ["IB", "SA"]

    # Every system in every cell once.
    cells = {(row["beam"], row["batch_size"], row["system"]): row for row in batch}
    assert len(cells) == len(batch) == 2 * 2 * 4
    for beam in (1, 2):
        for size in (1, 4):
            rows = [cells[beam, size, name] for name in (stock, engine, *names)]
            assert {row["sentences"] for row in rows} == {12}
            assert rows[0]["speedup"][stock] == rows[1]["speedup"][engine] == 1
            ratio = rows[0]["seconds"] / rows[2]["seconds"]
            assert rows[2]["speedup"][stock] == pytest.approx(ratio)
    # Of 4 to 21 tokens.
    assert 2 <= cells[1, 1, "IB"]["steps"] <= 11
    assert 1 <= cells[1, 1, "SA"]["steps"] <= 6

    # Bins share the sentences, shortest first.
    bins = [row for row in length if row["system"] == "IB"]
    assert 2 <= len(bins) <= 3 and sum(row["sentences"] for row in bins) == 12
    assert all(a["longest"] < b["shortest"] for a, b in itertools.pairwise(bins))
    timed = [row["seconds"] for row in length if row["system"] == "IB"]
    assert sum(timed) == pytest.approx(cells[2, 1, "IB"]["seconds"])

    points = {row["system"]: row for row in words}
    assert list(points) == [stock, engine, "IB", "SA", "IB, dedup", "SA, dedup"]
    assert points["SA, dedup"]["dedup"] == 2
    assert points["SA"]["words_per_direction"] == 2
    assert points[engine]["bleu"] == points[stock]["bleu"] > 50

    table = output.with_suffix(".md").read_text()
    assert all(f"(Figure {number})" in table for number in (2, 3, 4))
    lines = {"batch": "beam 2", "length": "SA", "words": "h=2, dedup 2"}
    for name, line in lines.items():
        assert line in Path(f"{output}-{name}.svg").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "nothing"], "NAME=FILE"),
        (["--model", "a=never.pt"], "there is no file never.pt"),
        (["--model", "Transformer, fairseq={}"], "same name"),
        (["--model", "a={}", "--bins", "0"], "--bins 0"),
        (["--model", "a={}", "--path", "{}"], "word by word"),
    ],
)
def test_refusals(
    trained: Trained,
    writers: dict[str, Path],
    tmp_path: Path,
    options: list[str],
    message: str,
) -> None:
    filled = [option.format(writers["1"]) for option in options]
    with pytest.raises(SystemExit, match=message):
        run(trained, *filled, "--output", str(tmp_path / "never"))
