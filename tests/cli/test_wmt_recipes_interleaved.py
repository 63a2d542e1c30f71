"""Interleaved decoding on WMT, from made-up files in the public formats to the table."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from fairseq_aggdec.stored.loading import load_checkpoint
from tests.cli.wmt_files import PAIRS, WIDTHS, recipe, text

SETTINGS = {
    "GPUS": "0",
    "MAX_UPDATE": "2",
    "MODEL_FLAGS": WIDTHS,
    "TRAIN_FLAGS": "--max-tokens 400 --update-freq 1 --disable-validation",
    "DECODE_FLAGS": "--max-len-a 0 --max-len-b 12",
    "DISTILL_FLAGS": "--max-len-a 0 --max-len-b 12 --keep-cut --max-length-ratio 100",
    "PRECISION_FLAGS": "",
    "WORKERS": "1",
    "VOCABULARY": "120",
}
LANGUAGES = {"en": "en", "ro": "de"}  # whose words stand for whose


def write_wmt16(raw: Path) -> None:
    """RAW for wmt16-en-ro: two archives, and the sets that sacreBLEU would download."""
    raw.mkdir(parents=True)
    half = PAIRS["train"] // 2
    with (
        tarfile.open(raw / "training-parallel-ep-v8.tgz", "w:gz") as tar,
        zipfile.ZipFile(raw / "SETIMES-en-ro.txt.zip", "w") as archive,
    ):
        for language, words in LANGUAGES.items():
            content = text(words, 0, half)
            info = tarfile.TarInfo(f"training-parallel-ep-v8/europarl-v8.ro-en.{language}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            archive.writestr(f"SETIMES.en-ro.{language}", text(words, half, half))
            for split in ("valid", "test"):
                (raw / f"{split}.{language}").write_bytes(text(words, 7, PAIRS[split]))


def options(folder: Path) -> dict[str, Any]:
    """Those of an averaged model."""
    model = load_checkpoint(str(folder / "model.pt"))["cfg"]["model"]
    return vars(model) if isinstance(model, Namespace) else dict(model)


def test_from_teacher_to_table(tmp_path: Path) -> None:
    """The teacher, a student with an ablation on its outputs, and a table of both."""
    work = tmp_path / "work"
    write_wmt16(work / "raw")
    settings = SETTINGS | {"SETTINGS": "distilled", "BEAMS": "2", "GEOMETRIES": ""}
    settings["STUDENTS"] = "2x2+middle-to-side"
    result = recipe("interleaved_wmt", "wmt16-en-ro", work, **settings)
    assert result.returncode == 0, result.stderr[-3000:]
    rows = json.loads((work / "results-ro-en-interleaved.json").read_text())["results"]
    assert [row["system"] for row in rows] == [
        "Transformer, raw, beam 2",
        "Transformer, raw, beam 2, this engine",
        "IBDecoder + SA, c=2, middle-to-side, 2 decoder layers, distilled, beam 2",
    ]
    assert {row["sentences"] for row in rows} == {PAIRS["test"]}
    assert rows[0]["speed-up"] == 1
    for metric in ("sacreBLEU", "compound-split BLEU"):
        assert rows[1][metric] == rows[0][metric]
    assert all("--lenpen 0.6" in row["command"] for row in rows)
    teacher = json.loads((work / "interleaved-distilled-ro-en" / "distillation.json").read_text())
    penalised = "--decoding interleaved --variant length-penalty=gnmt --lenpen 0.6"
    assert f"--beam 4 {penalised}" in teacher["command"]
    assert ["--decoding stock" in row["command"] for row in rows] == [True, False, False]
    assert [penalised in row["command"] for row in rows] == [False, True, True]
    for command in (teacher["command"], *(row["command"] for row in rows)):
        assert "--max-len-a 1 --max-len-b 50" in command  # what this test sets comes behind it

    stock = options(work / "interleaved-1x1-raw-ro-en-model")
    assert (stock["arch"], stock["decoder_layers"]) == ("transformer", 6)
    student = options(work / "interleaved-2x2+middle-to-side-student-distilled-ro-en-model")
    assert (student["directions"], student["words_per_direction"]) == (2, 2)
    assert (student["decoder_layers"], student["middle_to_side"]) == (2, True)
    assert (student["dropout"], student["attention_dropout"]) == (0.1, 0.1)
