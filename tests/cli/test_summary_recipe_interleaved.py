"""Interleaved decoding of summaries, from lines of text to the table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fairseq_aggdec.stored.loading import load_checkpoint
from tests.cli.wmt_files import recipe

SETTINGS = {
    "GPUS": "0",
    "MAX_UPDATE": "2",
    "WARMUP": "3",
    "MODEL_FLAGS": "--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2 --encoder-layers 1 "
    "--decoder-embed-dim 16 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2",
    "TRAIN_FLAGS": "--disable-validation",
    "DECODE_FLAGS": "--max-len-b 9",
    "DISTILL_FLAGS": "--max-len-b 9 --keep-cut --max-length-ratio 100",
    "PRECISION_FLAGS": "",
    "VOCABULARY": "320",
    "MAX_SOURCE": "40",
    "SETTINGS": "distilled",
    "GEOMETRIES": "2x1",
    "BEAMS": "2",
}
COUNTS = {"train": 30, "val": 4, "test": 5}


def article(number: int) -> str:
    text = f"In the town the mayor opens bridge {number} . She smiles ."
    return f"{text} " * (20 if number == 2 else 1)  # one is longer than what is read of it


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for split, count in COUNTS.items():
        sides = {"source": article, "target": "the mayor opens bridge {}".format}
        for side, line in sides.items():
            text = "".join(f"{line(number)}\n" for number in range(count))
            (folder / f"{split}.{side}").write_text(text)
    return folder


def test_from_articles_to_table(data: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    result = recipe("interleaved_summaries", data, WORK=str(work), **SETTINGS)
    assert result.returncode == 0, result.stderr[-3000:]
    rows = json.loads((work / "results-interleaved.json").read_text())["results"]
    assert [row["system"] for row in rows] == [
        "Transformer, raw, beam 2",
        "Transformer, raw, beam 2, this engine",
        "IBDecoder, distilled, beam 2",
    ]
    for row in rows:
        assert row["sentences"] == COUNTS["test"]
        assert {"ROUGE-1", "ROUGE-2", "ROUGE-L"} <= set(row)
        assert "--truncate-source" in row["command"]
    distilled = json.loads((work / "interleaved-distilled" / "distillation.json").read_text())
    penalised = "--beam 4 --decoding interleaved --variant length-penalty=gnmt --lenpen 0.6"
    assert penalised in distilled["command"]
    model = load_checkpoint(str(work / "interleaved-2x1-distilled-model" / "model.pt"))
    assert (model["cfg"]["model"].directions, model["cfg"]["optimizer"]["lr"]) == (2, [0.0007])
    assert model["cfg"]["lr_scheduler"].warmup_updates == 3
    # An article is so many times as long as its summary, and so many batches more make 25000 target tokens.
    pieces = [
        (work / "subwords" / f"train.{side}").read_text().splitlines() for side in ("src", "tgt")
    ]
    source, target = ([len(line.split()) + 1 for line in side] for side in pieces)
    longer = sum(max(min(s, 40), t) for s, t in zip(source, target, strict=True))
    assert max(source) > 40 and longer > 1.5 * sum(target)
    assert model["cfg"]["optimization"]["update_freq"] == [math.ceil(8 * longer / sum(target))]


def test_what_is_missing(data: Path, tmp_path: Path) -> None:
    (data / "train.target").unlink()
    (data / "test.source").unlink()
    result = recipe("interleaved_summaries", data, WORK=str(tmp_path / "work"), GPUS="0")
    assert result.returncode == 2
    assert "2 of the files" in result.stderr
    assert "train.target" in result.stderr
    assert "test.source" in result.stderr
    assert "val.source" not in result.stderr
    assert not (tmp_path / "work").exists()


def test_sides_of_different_length(data: Path, tmp_path: Path) -> None:
    with open(data / "test.target", "a") as file:
        file.write("one more\n")
    result = recipe("interleaved_summaries", data, WORK=str(tmp_path / "work"), GPUS="0")
    assert result.returncode == 2
    assert "test.source has 5 lines" in result.stderr
    assert "test.target has 6" in result.stderr
    assert not (tmp_path / "work").exists()
