"""scripts/recipes/interleaved/training.py as a user calls it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import PLUGIN, Trained
from tests.cli.test_interleaved import SIZES
from tests.cli.test_tools import script

TRAINING = shlex.split(
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 0.001 --batch-size 8 --cpu "
    "--num-workers 0 --source-lang src --target-lang tgt"
)


def run(trained: Trained, output: Path, *more: str) -> None:
    arguments = [str(trained.data), *PLUGIN[:2], *SIZES, *TRAINING, "--output", str(output)]
    script("scripts.recipes.interleaved.training").main([*arguments, *more])


def test_models_are_trained_in_turn(trained: Trained, tmp_path: Path) -> None:
    output = tmp_path / "cost"
    options = ["--updates", "3", "--warm-up", "1", "--geometries", "1x1", "2x2", "4x1"]
    run(trained, output, *options, "--cpu-time")
    record = json.loads(output.with_suffix(".json").read_text())
    assert record["clock"] == "processor"
    rows = {row["model"]: row for row in record["results"]}
    assert list(rows) == ["stock", "1x1", "2x2", "4x1"]
    assert rows["stock"]["over_stock"] == 1
    # The ordinary Transformer under another name; four directions have an embedding each.
    assert rows["1x1"]["first_loss"] == pytest.approx(rows["stock"]["first_loss"], abs=1e-3)
    assert rows["2x2"]["first_loss"] != rows["stock"]["first_loss"]
    assert rows["2x2"]["parameters"] == rows["stock"]["parameters"]
    assert rows["4x1"]["parameters"] == rows["stock"]["parameters"] + 4 * 32
    assert "| 4x1 |" in output.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--geometries", "2"], "--geometries 2"),
        (["--geometries", "2x1", "2x1"], "comes twice"),
        (["--updates", "0"], "--updates 0"),
        (["--updates", "999"], "has only 188 batches"),
        (["--cpu-time", "--threads", "2"], "--cpu-time needs"),
    ],
)
def test_refusals(trained: Trained, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        run(trained, tmp_path / "never", *options)
    assert not list(tmp_path.iterdir())


def test_ratios_are_taken_batch_by_batch() -> None:
    assert (
        script("scripts.recipes.interleaved.training").ratio([2.0, 9.0, 30.0], [1.0, 3.0, 20.0])
        == 2.0
    )
