"""``scripts/recipes/blockwise/blockwise_wmt14.sh``: every stage on a few dozen lines, with a model of nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fairseq_cli import preprocess

from tests.cli.commands import run
from tests.cli.wmt_files import SIZES, recipe
from tests.support import random_sources

SPLITS = {"train": 40, "valid": 6, "test": 5}
TINY = {
    "SETTINGS": "regular both",
    "BLOCK_SIZES": "2",
    "MAX_UPDATE": "4",
    "SAVE_EVERY": "2",
    "AVERAGE": "2",
    "WARMUP": "2",
    "MAX_TOKENS": "400",
    "UPDATE_FREQ": "1",
    "MODEL_FLAGS": SIZES,
    "HEAD_FLAGS": "--head-hidden-dim 8",
    "DECODE_FLAGS": "--batch-size 8",
    "DISTILL_FLAGS": "--keep-cut --max-length-ratio 100",
    "TABLE_FLAGS": "--time-sentences 1 --repeats 1",
    "SUBSETS": "valid",
    "GPUS": "0",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Binarised sentences with a joined dictionary."""
    options = ["--source-lang", "en", "--target-lang", "de", "--joined-dictionary"]
    for split, count in SPLITS.items():
        options += [f"--{split}pref", str(tmp_path / split)]
        for side in ("en", "de"):
            rows = random_sources(count, count)
            text = "".join(" ".join(f"w{word}" for word in row) + "\n" for row in rows)
            (tmp_path / f"{split}.{side}").write_text(text)
    run(preprocess.cli_main, *options, "--destdir", tmp_path / "data", "--workers", "1")
    return tmp_path / "data"


def run_recipe(work: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    places = {"WORK": str(work), "OUTPUT": str(work / "results" / "table")}
    return recipe("blockwise_wmt14", cwd=work.parent, **TINY | places | settings)


def test_every_stage_and_the_table(data: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    done = run_recipe(work, DATA=str(data))
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((work / "results" / "table-valid.json").read_text())
    found = {score["model"] for score in record["results"]}
    assert found == {"base/1", "regular/2", "both/2"}
    exact = [score for score in record["results"] if score["rule"] == "exact"]
    assert len(exact) == 2 and all(score["differ"] == 0 for score in exact)
    assert (work / "distilled" / "distillation.json").exists()
    log = (work / "heads-both-2" / "train.log").read_text()
    assert str(work / "distilled") in log
    assert "| k | base | regular | both |" in done.stdout
    again = run_recipe(work, DATA=str(data))
    assert again.returncode == 0, again.stderr[-3000:]
    stages = [line for line in again.stderr.splitlines() if "] stage " in line]
    assert len(stages) == 6  # the teacher's work is done
    assert all(line.endswith("done already, kept") for line in stages)
