"""The recipe gad_analyses.sh: tables and traces of drafters from the folders of another recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.commands import Trained
from tests.cli.test_gad import train_drafter
from tests.cli.wmt_files import recipe


@pytest.fixture(scope="module")
def drafter(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafter")
    train_drafter(trained, folder, 100)
    return folder / "checkpoint_best.pt"


def test_analyses(trained: Trained, drafter: Path, tmp_path: Path) -> None:
    """Tables of drafters from the folders of a recipe; what is there is kept."""
    work, output = tmp_path / "work", tmp_path / "results" / "gad"
    work.mkdir()
    (work / "data-src-tgt").symlink_to(trained.data)
    for name, checkpoint in (
        ("verifier-src-tgt/checkpoint_last.pt", trained.checkpoint),
        ("drafter-src-tgt/checkpoint_best.pt", drafter),
    ):
        (work / name).parent.mkdir()
        (work / name).symlink_to(checkpoint)
    settings = {"WORK": str(work), "SOURCE": "src", "TARGET": "tgt", "OUTPUT": str(output)}
    settings |= {"ANALYSES": "block-size drafter modules traces", "TABLE_FLAGS": "--limit 6"}
    settings |= {"BLOCK_SIZES": "2"}
    result = recipe("gad_analyses", **settings)
    assert result.returncode == 0, result.stderr[-2000:]
    sizes = json.loads(Path(f"{output}-block-size.json").read_text())["results"]
    assert [row["system"] for row in sizes[3:]] == [
        *["k = 2", "GAD++, k = 2", "k = auto", "GAD++, k = auto"]
    ]
    record = json.loads(Path(f"{output}-drafter.json").read_text())
    assert [row["system"] for row in record["results"][3:]] == [
        *["drafter", "GAD++ (3, 1.0), drafter", "GAD++ (5, 3.0), drafter"]
    ]
    # k tokens as in the paper, not as many as pay
    assert record["command"].count("--draft-tokens all") == 3
    record = json.loads(Path(f"{output}-modules.json").read_text())
    assert record["command"].count("--draft-tokens all") == 2
    rows = {row["system"]: row for row in record["results"]}
    assert rows["GAD"]["differ"] == 0
    assert set(rows["GAD++"]["speedup"]) == {"fairseq beam 5"}
    assert len(record["distribution"]["speedups"]) == 6
    page = re.sub("<[^>]*>", "", Path(f"{output}-traces.html").read_text())
    assert re.search(r"^     1 D.*?^       V", page, re.M + re.S)
    assert Path(f"{output}-traces-relaxed.html").exists()
    again = recipe("gad_analyses", **settings)
    assert again.stderr.count("is there already, kept") == 5
    unknown = recipe("gad_analyses", **settings | {"ANALYSES": "traces tables"})
    assert unknown.returncode == 2
    assert "unknown analysis 'tables' in ANALYSES" in unknown.stderr


def test_folders_of_the_recipe_on_wmt(trained: Trained, drafter: Path, tmp_path: Path) -> None:
    """The other direction's models too; a block size that a drafter was trained for is its own."""
    work, output = tmp_path / "wmt14-src-tgt", tmp_path / "gad"
    work.mkdir()
    (work / "data-src-tgt").symlink_to(trained.data)
    for name, checkpoint in (
        ("verifier-src-tgt-model/model.pt", trained.checkpoint),
        ("drafter-src-tgt-model/model.pt", drafter),
        ("drafter-k2-src-tgt-model/model.pt", drafter),
    ):
        (work / name).parent.mkdir()
        (work / name).symlink_to(checkpoint)
    settings = {"WORK": str(work), "SET": "wmt14-src-tgt", "OUTPUT": str(output)}
    settings |= {"ANALYSES": "block-size", "TABLE_FLAGS": "--limit 3", "BLOCK_SIZES": "1 2"}
    result = recipe("gad_analyses", **settings)
    assert result.returncode == 0, result.stderr[-2000:]
    record = json.loads(Path(f"{output}-block-size.json").read_text())
    assert record["title"] == "GAD on wmt14-src-tgt, src-tgt: block size (Table 6)"
    assert "drafter-k2-src-tgt-model/model.pt" in record["command"]
    assert "model.pt --draft-tokens 1" in record["command"]
    assert "model.pt --block-size 2" not in record["command"]
    missing = recipe("gad_analyses", **settings | {"DIRECTION": "tgt-src"})
    assert missing.returncode == 2
    assert "run scripts/recipes/gad/gad_wmt.sh wmt14-src-tgt first" in missing.stderr
