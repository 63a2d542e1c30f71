"""Super-resolution through the real commands: preparation, training, generation, the sheet."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from aggdec_images import super_resolution  # noqa: F401  (registers the task)
from aggdec_images import transformer as image_transformer  # noqa: F401  (registers the architecture)
from fairseq_cli import generate, interactive, train
from PIL import Image

from scripts.recipes.images import sheet as super_resolution_sheet
from scripts.recipes.images.make_images import main as prepare

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = shlex.split("--task super_resolution --cpu --num-workers 0 --user-dir")
PLUGIN.append(str(ROOT / "scripts" / "recipes" / "images" / "aggdec_images"))
SIZES = ["--low-size", "2", "--high-size", "4", "--channels", "rgb"]
SYMBOLS = 4 * 4 * 3
MODEL_FLAGS = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 64 "
    "--decoder-ffn-embed-dim 64 --attention-span 12"
)
TRAINING = shlex.split(
    "--arch image_transformer --criterion cross_entropy --optimizer adam --lr 0.01 --batch-size 20 --max-update 40 "
    "--no-progress-bar --no-epoch-checkpoints --seed 1 --dropout 0"
)


def run(command: Callable[[], Any], *arguments: str | Path, stdin: str = "") -> str:
    """Runs a fairseq command in this process; what it printed."""
    stdout = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["fairseq", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(stdout),
    ):
        command()
    return stdout.getvalue()


def hypotheses(printed: str) -> dict[int, list[int]]:
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", printed, re.MULTILINE)
    return {int(index): [int(symbol) for symbol in line.split()] for index, line in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared images in ``data`` and a model in ``model``."""
    folder = tmp_path_factory.mktemp("images")
    prepare(["--output", str(folder / "data"), *SIZES, "--crops", "200", "10", "9"])
    model = [*shlex.split(MODEL_FLAGS), "--save-dir", str(folder / "model")]
    run(train.cli_main, folder / "data", *PLUGIN, *TRAINING, *model)
    return folder


def test_every_image_has_all_of_its_intensities(folder: Path) -> None:
    model = folder / "model" / "checkpoint_last.pt"
    options = ["--path", model, "--beam", "1", "--required-batch-size-multiple", "1"]
    printed = run(generate.cli_main, folder / "data", *PLUGIN, *options)
    found = hypotheses(printed)
    assert sorted(found) == list(range(9))
    assert all(len(symbols) == SYMBOLS for symbols in found.values())
    targets = re.findall(r"^T-(\d+)\t(.*)$", printed, re.MULTILINE)
    high = np.load(folder / "data" / "test.high.npy")
    for index, line in targets:
        assert [int(symbol) for symbol in line.split()] == high[int(index)].flatten().tolist()


def test_lengths_of_the_user_are_kept(folder: Path) -> None:
    model = folder / "model" / "checkpoint_last.pt"
    arguments = [folder / "data", *PLUGIN, "--path", model, "--beam", "1", "--max-len-b", "7"]
    assert all(len(found) <= 7 for found in hypotheses(run(generate.cli_main, *arguments)).values())


def test_intensities_can_be_typed_in(folder: Path) -> None:
    model = folder / "model" / "checkpoint_last.pt"
    low = np.load(folder / "data" / "test.low.npy")
    lines = "".join(" ".join(map(str, image.flatten().tolist())) + "\n" for image in low[:2])
    arguments = [folder / "data", *PLUGIN, "--path", model, "--beam", "1"]
    typed = hypotheses(run(interactive.cli_main, *arguments, stdin=lines))
    read = hypotheses(run(generate.cli_main, *arguments))
    assert typed == {0: read[0], 1: read[1]}


def test_a_model_of_other_images_is_refused(folder: Path, tmp_path: Path) -> None:
    prepare(
        ["--output", str(tmp_path), "--low-size", "2", "--high-size", "5", "--crops", "1", "1", "1"]
    )
    model = folder / "model" / "checkpoint_last.pt"
    with pytest.raises(ValueError, match="the model was trained on other images"):
        run(generate.cli_main, tmp_path, *PLUGIN, "--path", model)


def test_an_unprepared_folder_is_named(folder: Path, tmp_path: Path) -> None:
    model = folder / "model" / "checkpoint_last.pt"
    with pytest.raises(ValueError, match=r"format\.json is missing: prepare the images"):
        run(generate.cli_main, tmp_path, *PLUGIN, "--path", model)


# -- the sheet


@pytest.fixture(scope="module")
def sheet() -> Callable[[Sequence[str]], None]:
    """The script's main function."""
    main: Callable[[Sequence[str]], None] = super_resolution_sheet.main
    return main


def test_the_sheet_holds_every_system(
    folder: Path, tmp_path: Path, sheet: Callable[[Sequence[str]], None]
) -> None:
    model = str(folder / "model" / "checkpoint_last.pt")
    output = ["--output", str(tmp_path / "sheet"), "--limit", "5", "--rows", "3"]
    systems = ["--system", "regular/1", model, "--system", "again", model]
    sheet([str(folder / "data"), "--cpu", *output, *systems, "--batch-size", "2"])
    record = json.loads((tmp_path / "sheet.json").read_text(encoding="utf-8"))
    by_name = {system["name"]: system for system in record["results"]}
    assert list(by_name) == ["nearest neighbour", "bicubic", "regular/1", "again"]
    assert record["images"] == 5
    for name in ("regular/1", "again"):
        assert by_name[name]["identical_to_first"] == 5
        assert by_name[name]["mean_accepted"] == 1.0
        assert by_name[name]["psnr"] == by_name["again"]["psnr"]
    page = (tmp_path / "sheet.md").read_text(encoding="utf-8")
    assert "| 1 | 1.00 |  |  |  |" in page
    assert record["table_2"] == {"1": {"regular": 1.0}}
    assert "| again |" in page
    drawn = np.asarray(Image.open(tmp_path / "sheet.png"))
    # The reference stands in the last of four columns: each of its pixels as a square of 28.
    high = np.load(folder / "data" / "test.high.npy")
    width = (drawn.shape[1] - 8) // 4
    left, bottom = 8 + 3 * width, drawn.shape[0] - 8
    picture = drawn[bottom - 112 : bottom, left : left + 112]
    assert np.array_equal(picture[::28, ::28], high[2])
    nearest = drawn[bottom - 112 : bottom, 8 : 8 + 112]  # the first column
    low = np.load(folder / "data" / "test.low.npy")
    assert np.array_equal(nearest[::56, ::56], low[2])


def test_every_column_drafts_whole_blocks(folder: Path) -> None:
    """Else exact columns would draft as much as pays, and the others all."""
    model = str(folder / "model" / "checkpoint_last.pt")
    for given in ([], ["acceptance=distance:2"]):
        system = super_resolution_sheet.System("x", model, ["decoding=blockwise", *given])
        assert super_resolution_sheet.build_task(str(folder / "data"), system).always_draft


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system", "alone"], "a system is a name and a checkpoint"),
        (["--system", "a", "m.pt", "--system", "a", "m.pt"], "a name of its own"),
        (["--system", "a", "m.pt", "colour=red"], "colour"),
        (["--system", "a", "m.pt", "--split", "other"], "other.low.npy"),
        (["--system", "a", "m.pt", "--limit", "0"], "--limit"),
    ],
)
def test_the_sheet_names_what_is_wrong(
    folder: Path,
    tmp_path: Path,
    sheet: Callable[[Sequence[str]], None],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as stopped:
        sheet([str(folder / "data"), "--cpu", "--output", str(tmp_path / "sheet"), *arguments])
    assert message in f"{stopped.value} {capsys.readouterr().err}"
