"""The recipe for models of NLLB's size, at a size that takes seconds, without CTranslate2, which no test needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_aggdec.kernels.library import kernels
from tests.cli.wmt_files import recipe


@pytest.mark.skipif(kernels() is None, reason="there are no compiled kernels")
def test_packed_models_beside_stock(tmp_path: Path) -> None:
    settings = {"SIZE": "tiny", "LIMIT": "2", "LENGTH": "4", "BATCH_SIZES": "2", "THREADS": "1"}
    result = recipe("large_rivals", WORK=str(tmp_path), FORMS="int8", SEARCHES="beam5", **settings)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "packed-int8" / "packed.safetensors").exists()
    made = json.loads((tmp_path / "tables" / "int8-beam5-1.json").read_text())
    assert [row["system"] for row in made["results"]][:2] == ["beam5", "search5-int8"]
    starts = json.loads((tmp_path / "tables" / "start.json").read_text())["results"]
    assert [(row["model"], row["beam"]) for row in starts] == [
        ("packed in 8 bits", 1),
        ("packed in 8 bits", 5),
        ("checkpoint, int8", 1),
    ]
    assert all(0 < row["ready"] < row["first"] and row["own"] <= row["memory"] for row in starts)
    (bound,) = json.loads((tmp_path / "tables" / "roofline.json").read_text())["results"]
    assert (bound["form"], bound["search"], bound["batch"]) == ("int8", "beam5", 2)
    assert all(bound[part] > 0 for part in ("encoder", "layers", "projection", "measured"))
    other = recipe("large_rivals", WORK=str(tmp_path), FORMS="int4", **settings)
    assert other.returncode == 2
    assert "FORMS: int8, float32" in other.stderr
