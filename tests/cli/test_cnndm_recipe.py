"""The recipe for summaries: made-up articles, byte pairs and BART checkpoints in the public formats, to the table."""

from __future__ import annotations

import io
import json
import re
import tarfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode
from fairseq.models.bart import BARTModel
from fairseq.models.bart.model import bart_base_architecture

from tests.cli.wmt_files import recipe

SIZES = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_embed_dim": 16,
    "decoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 16,
    "decoder_ffn_embed_dim": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
PAIRS = {"train": 12, "val": 4, "test": 5}
MERGES = ["Ġ t", "h e", "Ġt he", "i n"]
EMPTY = 3  # the training pair without a summary
LONG = 4  # the one whose article no BART reads to its end
SETTINGS = {
    "GPUS": "0",
    "MAX_UPDATE": "2",
    "MODEL_FLAGS": " ".join(f"--{name.replace('_', '-')} {n}" for name, n in SIZES.items()),
    "ARCH": "bart_base",
    "TEACHER_ARCH": "bart_base",
    "BLOCK_SIZE": "4",
    "TRAIN_FLAGS": "--max-tokens 3000 --update-freq 1 --max-source-positions 1024",
    "DECODE_FLAGS": "--min-len 5 --max-len-b 14",
    "DISTILL_FLAGS": "--min-len 5 --max-len-b 14 --keep-cut",
    "PRECISION_FLAGS": "",
    "WORKERS": "0",
    "SYSTEMS": "greedy gad gad-efficiency",
}


def article(number: int) -> str:
    text = f"In the town the mayor opens bridge {number}, the café stays shut. She smiles."
    return text * 40 if number == LONG else text


def summary(number: int) -> str:
    return "" if number == EMPTY else f"The mayor opens bridge {number} . The café is shut ."


def write_articles(raw: Path) -> None:
    """``cnn_dm_v2.tgz`` as it is offered: six files in a folder."""
    raw.mkdir(parents=True)
    with tarfile.open(raw / "cnn_dm_v2.tgz", "w:gz") as tar:
        for split, count in PAIRS.items():
            first = 0 if split == "train" else 100
            for side, text in (("source", article), ("target", summary)):
                lines = "".join(text(first + n) + "\n" for n in range(count)).encode()
                info = tarfile.TarInfo(f"cnn_cln/{split}.{side}")
                info.size = len(lines)
                tar.addfile(info, io.BytesIO(lines))


def write_byte_pairs(folder: Path) -> Dictionary:
    """GPT-2's three files with a byte each and a few merges; returns the dictionary."""
    folder.mkdir(parents=True)
    symbols = [*bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    (folder / "encoder.json").write_text(json.dumps(numbers))
    lines = ["#version: 0.2", *MERGES, ""]
    (folder / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    (folder / "dict.txt").write_text("".join(f"{n} 1\n" for n in numbers.values()))
    return Dictionary.load(str(folder / "dict.txt"))


def write_bart(path: Path, dictionary: Dictionary) -> None:
    """``bart.base.tar.gz`` as it is offered: a checkpoint of fairseq's denoising task, with a row for the mask."""
    dictionary.add_symbol("<mask>")
    args = Namespace(**SIZES, arch="bart_base", task="denoising", criterion="cross_entropy")
    bart_base_architecture(args)
    task: Any = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = BARTModel.build_model(args, task)
    last = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam"}
    state = {
        "args": args,
        "model": model.state_dict(),
        "optimizer_history": [last | {"lr_scheduler_state": {}, "num_updates": 500}],
        "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1, "iterations_in_epoch": 7}},
        "last_optimizer_state": None,
    }
    file = io.BytesIO()
    torch.save(state, file)
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo(f"{path.name.split('.tar')[0]}/model.pt")
        info.size = len(file.getvalue())
        tar.addfile(info, io.BytesIO(file.getvalue()))


def test_from_bart_to_the_table(tmp_path: Path) -> None:
    raw, work = tmp_path / "raw", tmp_path / "work"
    write_articles(raw)
    torch.manual_seed(1)
    write_bart(raw / "bart.base.tar.gz", write_byte_pairs(raw / "gpt2_bpe"))
    result = recipe("gad_cnndm", work, **SETTINGS, RAW=str(raw), TEACHER_BART="bart.base")
    assert result.returncode == 0, result.stderr[-3000:]

    again = recipe("gad_cnndm", work, **SETTINGS, RAW=str(raw), TEACHER_BART="bart.base")
    assert again.returncode == 0, again.stderr[-2000:]
    assert "made anew" not in again.stderr

    counts = json.loads((work / "pieces" / "counts.json").read_text())
    assert counts == {"train, kept": 11, "train, empty": 1, "valid, kept": 4, "test, kept": 5}
    lengths = [len(x.split()) for x in (work / "pieces" / "train.source").read_text().splitlines()]
    assert max(lengths) == 1023  # and </s>
    for name in ("teacher", "verifier"):
        assert "loading pretrained model" in (work / name / "train.log").read_text()
    started = (work / "drafter" / "train.log").read_text()
    assert re.search(r"\d+ of \d+ parameters of the decoder begin as in", started)
    assert (work / "distilled" / "distillation.json").exists()

    rows = {
        row["system"]: row for row in json.loads((work / "results.json").read_text())["results"]
    }
    assert list(rows) == ["verifier, our greedy", "GAD", "GAD++ (5,3.0)"]
    for row in rows.values():
        assert row["sentences"] == PAIRS["test"]
        for option in ("--no-repeat-ngram-size 3", "--min-len 55 --max-len-b 140", "--lenpen 2.0"):
            assert option in row["command"]
        assert {"ROUGE-1", "ROUGE-2", "ROUGE-L"} <= row.keys()
    assert "--acceptance top-beta:5:3.0" in rows["GAD++ (5,3.0)"]["command"]
    assert rows["GAD"]["different"] == 0
    assert rows["GAD"]["ROUGE-1"] == rows["verifier, our greedy"]["ROUGE-1"]
    assert summaries_keep_their_limits((work / "decode-gad" / "generate.txt").read_text())


def summaries_keep_their_limits(printed: str) -> bool:
    """Lengths of 5 to 14 (``</s>`` is not printed) and no trigram twice."""
    found = [line.split("\t")[2].split() for line in re.findall("^H-.*", printed, re.MULTILINE)]
    trigrams = [list(zip(x, x[1:], x[2:], strict=False)) for x in found]
    return all(4 <= len(x) <= 14 for x in found) and all(len(x) == len({*x}) for x in trigrams)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "bart.base.tar.gz").write_bytes(b"cut short")
    settings = SETTINGS | {"TEACHER": __file__, "RAW": str(raw)}
    result = recipe("gad_cnndm", tmp_path / "work", **settings)
    assert result.returncode == 2
    assert "bart.base.tar.gz is damaged or lacks bart.base/model.pt" in result.stderr
    assert not (raw / "bart.base" / "model.pt").exists()


@pytest.mark.parametrize("split", ["train", "test"])
def test_texts_that_do_not_belong_together_are_named(split: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_byte_pairs(raw / "gpt2_bpe")
    models = {"BART": __file__, "TEACHER": __file__}
    for name in PAIRS:
        (raw / f"{name}.source").write_text("An article.\nAnother.\n")
        (raw / f"{name}.target").write_text("A.\n" * (1 if name == split else 2))
    result = recipe("gad_cnndm", tmp_path / "work", **SETTINGS | models, RAW=str(raw))
    assert result.returncode != 0
    assert f"{split}.source has 2 lines, {split}.target has 1" in result.stderr
