"""The recipes on Multi30k from made-up files in the public format to their tables, at a size that takes seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from scripts.recipes.lattice import recall_table
from tests.cli.wmt_files import PAIRS, SIZES, recipe, write_multi30k

SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "PRECISION_FLAGS": "",
    "VOCABULARY": "120",
    "MAX_UPDATE": "2",
    "AVERAGE": "1",
    "MODEL_FLAGS": SIZES,
    "DISTILL_FLAGS": "--keep-cut --max-length-ratio 100",
    "BF16": "0",
}

ANALYSES = ("choices", "information", "figures", "contrast")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What multi30k.sh makes of files that it downloads."""
    folder = tmp_path_factory.mktemp("multi30k")
    write_multi30k(folder / "public")
    work = folder / "work"
    result = recipe("multi30k", WORK=str(work), FILES=(folder / "public").as_uri(), **SETTINGS)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stderr.count("download file:") == 6
    assert (work / "model-de-en" / "model.pt").exists()
    return work


def test_the_same_command_again_makes_nothing_anew(made: Path, tmp_path: Path) -> None:
    work = shutil.copytree(made, tmp_path / "work")
    files = {"WORK": str(work), "FILES": (made.parent / "public").as_uri()}
    result = recipe("multi30k", **files, **SETTINGS)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stderr.count("done already, kept") == 5
    assert not list(work.glob("*.before-*"))


def run(made: Path, folder: Path, name: str, **settings: str) -> dict[str, dict[str, Any]]:
    """Rows of the table that a recipe makes, by system."""
    work = shutil.copytree(made, folder / "work")
    output = folder / "table"
    result = recipe(name, WORK=str(work), OUTPUT=str(output), **SETTINGS | settings)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    found = json.loads(output.with_suffix(".json").read_text())["results"]
    return {row["system"]: row for row in found}


def test_gad(made: Path, tmp_path: Path) -> None:
    """The verifier of the table is the one trained on distilled data; what is lossless equals its beam 1."""
    rows = run(made, tmp_path, "gad_multi30k", VERIFIER_UPDATE="2", LAYERS="1", BLOCK_SIZE="4")
    assert {row["sentences"] for row in rows.values()} == {PAIRS["test"]}
    for name in ("ours, greedy", "GAD, drafter", "GAD, automatic block size, drafter"):
        assert rows[name]["differ"] == 0
    record = json.loads((tmp_path / "table.json").read_text())
    assert "verifier-de-en/checkpoint_last.pt" in record["command"]
    assert "model-de-en/model.pt" in record["command"]
    assert rows["model of multi30k.sh, fairseq beam 5"]["differ"] is None
    assert (tmp_path / "work" / "verifier-greedy-de-en" / "distillation.json").exists()


def test_blockwise_on_sampled_sources(made: Path, tmp_path: Path) -> None:
    """The heads' base is the verifier; half of what they learn from is sampled by the model of the other direction. The
    models without heads are the k = 1 of their settings."""
    settings = {"SETTINGS": "both", "BLOCK_SIZES": "4", "VERIFIER_UPDATE": "2", "SAMPLED": "1"}
    settings |= {"ANALYSES": "audit trace"}
    work = shutil.copytree(made, tmp_path / "work")
    output = tmp_path / "table"
    environment = SETTINGS | settings | {"WORK": str(work), "OUTPUT": str(output)}
    refused = recipe("blockwise_multi30k", **environment)
    assert refused.returncode == 2
    assert "SAMPLED=1 needs" in refused.stderr
    files = {"WORK": str(work), "FILES": (made.parent / "public").as_uri()}
    reverse = recipe("multi30k", SOURCE="en", TARGET="de", **files, **SETTINGS)
    assert reverse.returncode == 0, reverse.stderr[-2000:]
    assert reverse.stderr.count("done already, kept") == 2  # what both directions share
    result = recipe("blockwise_multi30k", **environment)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    summary = json.loads((work / "verifier-greedy-sampled-de-en" / "distillation.json").read_text())
    assert sorted(summary["subsets"]) == ["train", "train1"]
    rows = json.loads(output.with_suffix(".json").read_text())["results"]
    assert {row["model"] for row in rows} == {"regular/1", "distillation/1", "both/4"}
    exact = [row for row in rows if row["rule"] == "exact"]
    assert exact and all(row["differ"] == 0 for row in exact)

    assert Path(f"{output}-equality-both-4.json").exists() and Path(f"{output}-trace.html").exists()

    settings = environment | {"HEADS": str(work / "blockwise-both-4-de-en" / "checkpoint_best.pt")}
    result = recipe("methods_multi30k", **settings | {"OUTPUT": str(tmp_path / "methods")})
    assert result.returncode == 0, result.stderr[-2000:]
    assert "GAD, verifier is left out" in result.stderr
    found = json.loads((tmp_path / "methods.json").read_text())["results"]
    assert {row["batch_size"] for row in found} == {1, 8, 32}
    for name in ("blockwise", "blockwise, default"):  # the paper's blocks, and what pays
        assert [row["differ"] for row in found if row["system"] == name] == [0, 0, 0]
    assert [bool(row["by_length"]) for row in found[:1] + found[-1:]] == [True, False]
    assert {"ours, beam 4", "ours, greedy, 8 bits"} <= {row["system"] for row in found}


def test_interleaved(made: Path, tmp_path: Path) -> None:
    """Geometries and an ablation are trained and compared; the analyses read what the recipe made."""
    settings = {"SETTINGS": "raw", "LAYERS": "1", "BEAMS": "2", "TEACHER": "greedy"}
    geometries = {"GEOMETRIES": "1x1 1x2 2x1", "ABLATIONS": "one-by-one"}
    rows = run(made, tmp_path, "interleaved_multi30k", **settings | geometries)
    names = ("1x1-raw-1", "1x2-raw-1", "2x1-raw-1", "one-by-one-2x1-raw-1")
    for name in names:
        assert f"interleaved-{name}, beam 2" in rows
    assert "ours, beam 2" in rows  # what a user would take instead

    output = tmp_path / "analysis"
    environment = {
        "WORK": str(tmp_path / "work"),
        "OUTPUT": str(output),
        "SETTING": "raw",
        "LAYERS": "1",
        "GEOMETRIES": "2x1",
        "BATCH_SIZES": "1 2",
        "BEAMS": "1",
    }
    result = recipe("interleaved_analyses", **SETTINGS | environment)
    assert result.returncode == 0, result.stderr[-2000:]
    made_files = {path.name for path in tmp_path.glob("analysis-*.json")}
    assert made_files == {f"analysis-{name}.json" for name in ANALYSES}
    pairs = json.loads((tmp_path / "analysis-information.json").read_text())["results"]
    assert [pair["step"] for pair in pairs] == [2, 2]
    points = json.loads((tmp_path / "analysis-figures.json").read_text())["results"]["words"]
    assert {"bleu", "otem", "utem"} <= points[0].keys()
    contrasted = json.loads((tmp_path / "analysis-contrast.json").read_text())["results"]
    assert {row["model"] for row in contrasted} == {"Transformer", "2x1"}
    counts = [row["pairs"] for row in contrasted if row["kind"] == "all"]
    assert counts[0] == counts[1] > 0
    result = recipe("interleaved_analyses", **SETTINGS | environment | {"ANALYSES": "tables"})
    assert result.returncode == 2
    assert "unknown analysis 'tables'" in result.stderr


def test_lattice(made: Path, tmp_path: Path) -> None:
    settings = {"SETTINGS": "distilled", "LAYERS": "2", "TEACHER": "greedy", "CANDIDATES": "8"}
    rows = run(made, tmp_path, "lattice_multi30k", PAPER="8", **settings)
    assert rows["distilled data, 2 layers, N = 8, plain counts"]["steps"] == 1
    assert rows["distilled data, 2 layers, N = 8, over the vocabulary"]["steps"] == 1
    assert rows["distilled data, 2 layers, N = 64"]["steps"] == 1
    assert "NAT, nat-distilled-1" in rows
    work, output = tmp_path / "work", tmp_path / "recall"
    recall = recall_table.main
    tables = ["--tables", str(work / "lattice-distilled-de-en"), "--output", str(output), "--cpu"]
    nat = work / "nat-distilled-1-de-en" / "checkpoint_last.pt"
    recall([str(work / "data-de-en"), "--nat", str(nat), *tables])
    curves = json.loads(output.with_suffix(".json").read_text())["recall"]
    assert (
        curves["non-autoregressive"]["128"] > curves["counts (none)"]["128"]
    )  # all types are there
    verifier = work / "model-de-en" / "model.pt"
    with pytest.raises(SystemExit, match=r"--nat .*model\.pt is no drafter"):
        recall([str(work / "data-de-en"), "--nat", str(verifier), *tables])


def test_engines_at_base_size(made: Path, tmp_path: Path) -> None:
    """Without CTranslate2, which the tests do not need."""
    systems = "--systems beam5 search5 greedy"
    settings = {"TYPES": "200", "LIMIT": "2", "BATCH_SIZES": "2", "LENGTH": "3"}
    rows = run(made, tmp_path, "base_rivals", TABLE_FLAGS=systems, **settings)
    assert rows["search5"]["differ"] == 0
    dictionary = tmp_path / "work" / "base-rivals-data-de-en" / "dict.en.txt"
    assert len(dictionary.read_text().splitlines()) == 200
