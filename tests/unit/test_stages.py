"""Stages of the recipes: done once, gone on with after a kill, made anew where their settings have changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMON = ROOT / "scripts" / "recipes" / "common.sh"

# A stage without settings, two with, and one that reads what the one before wrote; each writes down that it ran.
RECIPE = """
SIZE=${SIZE:-4}
DEPTH=${DEPTH:-1}
PAIR=de-en
TABLE=(--limit "${LIMIT:-9}")
text() { echo text >> "$WORK/ran"; echo "$SIZE" > "$OUT/text"; }
deeper() { echo "$DEPTH" > "$OUT/model"; }
train() { echo train >> "$WORK/ran"; [ -z "${die:-}" ] || exit 9; echo "$*" >> "$OUT/arguments"; deeper; }
decode() {
    echo decode >> "$WORK/ran"
    cat "$WORK/model-$PAIR/model" > "$OUT/decoded"
    echo "${TABLE[@]}" > "$OUT/table"
}
plain() { echo plain >> "$WORK/ran"; }
stage plain plain "$WORK/plain" # its own folder is none that it depends on
stage text text
resume "model-$PAIR" train "$WORK/text" --update-freq "${GPUS:-8}"
stage decode decode
"""


def recipe(work: Path, **settings: str) -> list[str]:
    """Which stages a run of the recipe made; a lower-case variable is no setting."""
    (work / "ran").write_text("")
    script = f'set -euo pipefail\nWORK={work}\n. "{COMMON}"\n{RECIPE}'
    environment = os.environ | {"PYTHON": "python"} | settings
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == (9 if "die" in settings else 0), done.stderr
    return (work / "ran").read_text().split()


def test_done_once(tmp_path: Path) -> None:
    assert recipe(tmp_path) == ["plain", "text", "train", "decode"]
    assert recipe(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({"SIZE": "5"}, ["text", "train", "decode"]),  # what follows reads its folder
        ({"DEPTH": "2"}, ["train", "decode"]),  # read by a function that train calls
        ({"LIMIT": "5"}, ["decode"]),  # an array
        ({"GPUS": "2"}, []),  # fewer GPUs, as many more passes
        ({"UNREAD": "1"}, []),
    ],
)
def test_changed_settings(settings: dict[str, str], made: list[str], tmp_path: Path) -> None:
    recipe(tmp_path)
    assert recipe(tmp_path, **settings) == made
    assert recipe(tmp_path, **settings) == []
    aside = [path.name for path in tmp_path.glob("*.before-*")]
    assert len(aside) == len(made)


def test_what_was_there_is_kept_aside(tmp_path: Path) -> None:
    recipe(tmp_path)
    recipe(tmp_path, DEPTH="2")
    (aside,) = tmp_path.glob("model-de-en.before-*")
    assert (aside / "model").read_text() == "1\n"
    assert (tmp_path / "decode" / "decoded").read_text() == "2\n"


def test_changed_settings_may_be_passed_over(tmp_path: Path) -> None:
    recipe(tmp_path)
    assert recipe(tmp_path, SIZE="5", KEEP="1") == []


def test_an_interrupted_stage_goes_on(tmp_path: Path) -> None:
    assert recipe(tmp_path, die="1") == ["plain", "text", "train"]
    (tmp_path / "model-de-en.partial" / "checkpoint").write_text("half")
    assert recipe(tmp_path) == ["train", "decode"]
    assert (tmp_path / "model-de-en" / "checkpoint").exists()


def test_an_interrupted_stage_of_other_settings_does_not(tmp_path: Path) -> None:
    recipe(tmp_path, die="1")
    (tmp_path / "model-de-en.partial" / "checkpoint").write_text("half")
    assert recipe(tmp_path, DEPTH="2") == ["train", "decode"]
    assert not (tmp_path / "model-de-en" / "checkpoint").exists()
    (aside,) = tmp_path.glob("model-de-en.partial.before-*")
    assert (aside / "checkpoint").read_text() == "half"


def test_a_folder_that_was_moved_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    recipe(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert recipe(tmp_path / "there") == []


def test_stages_of_before_are_kept(tmp_path: Path) -> None:
    """Of folders that an earlier version made nobody knows the settings."""
    recipe(tmp_path)
    for record in (tmp_path / ".settings").iterdir():
        record.unlink()
    assert recipe(tmp_path) == []
