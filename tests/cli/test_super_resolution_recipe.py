"""The recipe of super-resolution, from images to a sheet, with a model that is trained for seconds."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

from tests import warm
from tests.cli.commands import ROOT
from tests.cli.test_super_resolution import MODEL_FLAGS, SIZES


def test_the_recipe_ends_in_a_sheet_and_keeps_what_is_done(tmp_path: Path) -> None:
    settings = {
        "WORK": str(tmp_path),
        "PYTHON": warm.python(),
        "IMAGE_FLAGS": shlex.join([*SIZES, "--crops", "200", "10", "9"]),
        "MODEL_FLAGS": MODEL_FLAGS + " --dropout 0",
        "MAX_UPDATE": "40",
        "WARMUP": "10",
        "BATCH": "20",
        "IMAGES": "3",
        "BLOCK_SIZES": "2",
        "HEAD_UPDATE": "10",
        "PRECISION_FLAGS": "",
    }

    def run_recipe() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(ROOT / "scripts" / "recipes" / "images" / "super_resolution.sh")],
            capture_output=True,
            text=True,
            timeout=1200,
            env={**os.environ, **settings},
        )

    result = run_recipe()
    assert result.returncode == 0, result.stderr[-3000:]
    assert "| greedy |" in result.stdout
    assert (tmp_path / "sheet" / "sheet.png").exists()
    assert re.search(r"input_noise'?: 24", (tmp_path / "train" / "train.log").read_text())
    record = json.loads((tmp_path / "sheet" / "sheet.json").read_text(encoding="utf-8"))
    cells = record["table_2"]["2"]
    assert set(cells) == {"regular", "approximate", "fine-tuned", "both"}
    assert cells["approximate"] >= cells["regular"] >= 1
    assert record["table_2"]["1"] == {"regular": 1.0}  # the base
    log = (tmp_path / "heads-regular-2" / "train.log").read_text()
    assert re.search(r"checkpoint_best.*score [12]\.", log)  # tokens per iteration, not a loss
    by_name = {system["name"]: system for system in record["results"]}
    assert by_name["regular/2"]["identical_to_first"] == 3  # the base is frozen, head 1 is the base
    again = run_recipe()
    assert again.returncode == 0
    assert [line.split(": ")[1] for line in again.stderr.splitlines()] == ["done already, kept"] * 5
