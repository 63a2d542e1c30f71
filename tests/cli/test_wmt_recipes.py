"""The papers' recipes on translation data, from made-up files in the public formats to their tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.wmt_files import PAIRS, SIZES, recipe, write_wmt14

SETTINGS = {
    "GPUS": "0",
    "MAX_UPDATE": "2",
    "MODEL_FLAGS": SIZES,
    "TRAIN_FLAGS": "--max-tokens 400 --update-freq 1 --disable-validation",
    "DECODE_FLAGS": "--max-len-b 12",
    "DISTILL_FLAGS": "--max-len-b 12 --keep-cut --max-length-ratio 100",
    "PRECISION_FLAGS": "",
    "WORKERS": "0",
    "VOCABULARY": "120",  # of the data that are there
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of wmt14-en-de."""
    folder = tmp_path_factory.mktemp("wmt14")
    write_wmt14(folder / "raw")
    result = recipe("wmt_data", "wmt14-en-de", folder, VOCABULARY="120", WORKERS="1")
    assert result.returncode == 0, result.stderr[-2000:]
    return folder


def rows(work: Path, name: str) -> dict[str, dict[str, Any]]:
    result = json.loads((work / f"{name}.json").read_text())
    return {row["system"]: row for row in result["results"]}


def test_gad_from_teacher_to_table(made: Path, tmp_path: Path) -> None:
    """The other direction of the same data; what is lossless equals beam 1 of the verifier."""
    work = shutil.copytree(made, tmp_path / "work")
    settings = {**SETTINGS, "DIRECTION": "de-en", "TEACHER_ARCH": "transformer", "BLOCK_SIZE": "4"}
    result = recipe("gad_wmt", "wmt14-en-de", work, **settings)
    assert result.returncode == 0, result.stderr[-3000:]
    table = rows(work, "results-de-en")
    assert list(table) == [
        "verifier, beam 5",
        "verifier, beam 1",
        "teacher, beam 5",
        "verifier, our greedy",
        "drafter alone",
        "GAD",
        "GAD++ (3,1.0), high quality",
        "GAD++ (5,3.0), high efficiency",
    ]
    assert {row["sentences"] for row in table.values()} == {PAIRS["test"]}
    for name in ("GAD", "verifier, our greedy"):
        assert table[name]["different"] == 0
        for metric in ("sacreBLEU", "compound-split BLEU"):
            assert table[name][metric] == table["verifier, beam 1"][metric]
    assert table["verifier, beam 5"]["speed-up"] == 1
    assert "tokens per iteration" in table["GAD"]
    assert "--acceptance top-beta:5:3.0" in table["GAD++ (5,3.0), high efficiency"]["command"]
    assert "sacreBLEU signature: nrefs:1|case:mixed" in (work / "results-de-en.md").read_text()
    assert (work / "distilled-de-en" / "distillation.json").exists()
