"""``blockwise_multi30k.sh``: which models it trains, and its analyses; what it calls is only written down."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

RECIPE = (
    Path(__file__).resolve().parents[2]
    / "scripts"
    / "recipes"
    / "blockwise"
    / "blockwise_multi30k.sh"
)
MODELS = ("regular-4", "distillation-4", "both-4", "both-10", "both-dense-8")
# Writes its arguments down and makes the result that they name.
STAND_IN = """#!/usr/bin/env bash
printf '%q ' "$(basename "$0")" "$@" >> "$CALLS"; echo >> "$CALLS"
while [ $# -gt 0 ]; do
    case $1 in
        --output) : > "$2.json" ;;
        --report) : > "$2" ;;
    esac
    shift
done
"""


class Recipe:
    """The recipe on a folder with models of nothing."""

    def __init__(self, folder: Path):
        self.folder, self.work, self.calls = folder, folder / "work", folder / "calls"
        for name in ("python", "fairseq-train"):
            (folder / name).write_text(STAND_IN)
            (folder / name).chmod(0o755)
        made = [self.work / f"blockwise-{name}-de-en" / "checkpoint_best.pt" for name in MODELS]
        for file in (*made, self.base, self.verifier):
            file.parent.mkdir(parents=True)
            file.touch()

    @property
    def base(self) -> Path:
        return self.work / "model-de-en" / "model.pt"

    @property
    def verifier(self) -> Path:
        return self.work / "verifier-de-en" / "checkpoint_last.pt"

    @property
    def output(self) -> str:
        return str(self.folder / "table")

    def run(self, **settings: str) -> subprocess.CompletedProcess[str]:
        known = {"PYTHON": str(self.folder / "python"), "WORK": str(self.work), "GPUS": "0"}
        known |= {"CALLS": str(self.calls), "OUTPUT": self.output, "SETTINGS": ""}
        return subprocess.run(
            ["bash", str(RECIPE)],
            env={**os.environ, **known, **settings},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def called(self, tool: str) -> list[list[str]]:
        """Arguments of every call of a tool."""
        calls = [shlex.split(line) for line in self.calls.read_text().splitlines()]
        return [call for call in calls if any(argument.endswith(tool) for argument in call[:4])]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path)


def after(call: list[str], option: str) -> str:
    return call[call.index(option) + 1]


def test_frozen_models_are_audited_against_their_base(recipe: Recipe) -> None:
    done = recipe.run(ANALYSES="audit")
    assert done.returncode == 0, done.stderr
    audits = {after(call, "--output"): call for call in recipe.called("audit")}
    assert set(audits) == {f"{recipe.output}-equality-{name}" for name in MODELS}
    expected = {"regular-4": str(recipe.base), "distillation-4": str(recipe.verifier)}
    for name in MODELS:
        call = audits[f"{recipe.output}-equality-{name}"]
        assert f"blockwise-{name}-de-en" in after(call, "--path")
        assert ("--reference" in call) == (name in expected)
        assert name not in expected or after(call, "--reference") == expected[name]


def test_every_analysis_is_made_once(recipe: Recipe) -> None:
    for _ in range(2):
        done = recipe.run(ANALYSES="trace audit")
        assert done.returncode == 0, done.stderr
    assert done.stderr.count("is there already, kept") == 1 + len(MODELS)
    (call,) = recipe.called("trace")
    assert "blockwise-both-10-de-en" in after(call, "--path")
    assert len(recipe.called("audit")) == len(MODELS)


def test_no_analyses_by_default(recipe: Recipe) -> None:
    assert recipe.run().returncode == 0
    (table,) = recipe.called("blockwise.table")
    assert f"both-dense/8={recipe.work}/blockwise-both-dense-8-de-en/checkpoint_best.pt" in table


def test_an_unknown_analysis_is_refused(recipe: Recipe) -> None:
    refused = recipe.run(ANALYSES="audit table")
    assert refused.returncode == 2
    assert "unknown analysis 'table' in ANALYSES (choose from: audit trace)" in refused.stderr


def test_named_variants_and_the_base_as_k_1(recipe: Recipe) -> None:
    flags = {"HEAD_LAYOUT": "dense", "HEAD_FLAGS": "--head-hidden-dim 256", "NAME": "-narrow"}
    done = recipe.run(SETTINGS="regular fine-tuning", BLOCK_SIZES="1 2", **flags)
    assert done.returncode == 0, done.stderr
    trained = recipe.called("fairseq-train")
    # k = 1 of a frozen base is the base; a base that is trained on is trained for k = 1, too.
    assert [after(call, "--block-size") for call in trained] == ["1", "2", "2"]
    assert all(after(call, "--head-hidden-dim") == "256" for call in trained)
    for size in (1, 2):
        assert (recipe.work / f"blockwise-fine-tuning-narrow-{size}-de-en").exists()
