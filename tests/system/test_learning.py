"""A small system that learns: raw text to a Transformer to block heads, through fairseq's own commands."""

from __future__ import annotations

import importlib
import json
import random
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import ROOT, run
from tests.cli.test_tools import script

USER_DIR = ["--user-dir", str(ROOT / "fairseq_aggdec")]
WORDS = [f"{a}{b}" for a in "bdfgk" for b in "aeiou"]
SENTENCES = {"train": 3000, "valid": 40, "test": 60}
SIZES = shlex.split(
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 48 --decoder-embed-dim 48 "
    "--encoder-ffn-embed-dim 96 --decoder-ffn-embed-dim 96 --encoder-attention-heads 2 --decoder-attention-heads 2"
)
LEARNT = 0.6  # share of sentences without a fault; a model that learnt nothing has none
TRAINING = shlex.split(
    "--optimizer adam --lr-scheduler inverse_sqrt --warmup-updates 100 --batch-size 48 --clip-norm 1 --dropout 0 "
    "--cpu --seed 1 --num-workers 0 --no-progress-bar --no-epoch-checkpoints --required-batch-size-multiple 1"
)


def command(name: str, *arguments: str | Path) -> str:
    """Runs a fairseq command in this process; what it printed and logged."""
    found = run(importlib.import_module(f"fairseq_cli.{name}").cli_main, *arguments)
    return "\n".join([found.stdout, *found.log])


def write_texts(folder: Path) -> None:
    """A language whose words are spelt backwards in another one, in pairs that swap places."""
    rng = random.Random(1)
    for split, count in SENTENCES.items():
        sources, targets = [], []
        for _ in range(count):
            words = [rng.choice(WORDS) for _ in range(2 * rng.randint(2, 5))]
            swapped = [words[i ^ 1][::-1] for i in range(len(words))]
            sources.append(" ".join(words))
            targets.append(" ".join(swapped))
        (folder / f"{split}.xx").write_text("\n".join(sources) + "\n")
        (folder / f"{split}.yy").write_text("\n".join(targets) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("system")
    write_texts(folder)
    texts = [f"--{split}pref={folder / split}" for split in SENTENCES]
    command("preprocess", "-s", "xx", "-t", "yy", *texts, "--destdir", folder / "data")
    return folder / "data"


@pytest.fixture(scope="module")
def base(data: Path) -> Path:
    folder = data.parent / "base"
    limits = ["--max-update", "500", "--lr", "0.005", "--save-dir", folder]
    command("train", data, "--arch", "transformer", *SIZES, *TRAINING, *limits)
    return folder / "checkpoint_last.pt"


def decode(data: Path, model: Path, *options: str) -> tuple[dict[int, str], str]:
    printed = command(
        "generate", data, "--path", model, "--gen-subset", "test", "--cpu", "--print-step", *USER_DIR,
        "--task", "translation_aggdec", "--num-workers", "0", *options,
    )  # fmt: skip
    lines = re.findall(r"^D-(\d+)\t\S+\t(.*)$", printed, re.MULTILINE)
    assert len(lines) == SENTENCES["test"]
    return {int(sentence): text for sentence, text in lines}, printed


def accuracy(texts: dict[int, str], data: Path) -> float:
    references = (data.parent / "test.yy").read_text().splitlines()
    return sum(texts[i] == text for i, text in enumerate(references)) / len(references)


def mean_accepted(printed: str) -> float:
    """Tokens, ``</s>`` counted, per step, from the lines of ``--print-step``."""
    texts = re.findall(r"^H-\d+\t\S+\t(.*)$", printed, re.MULTILINE)
    steps = re.findall(r"^I-\d+\t(\d+)$", printed, re.MULTILINE)
    assert len(texts) == len(steps) == SENTENCES["test"]
    return sum(len(text.split()) + 1 for text in texts) / sum(map(int, steps))


def table_of(data: Path, model: Path) -> dict[str, dict[str, Any]]:
    """What ``scripts/recipes/blockwise/table.py`` finds, by rule."""
    output = data.parent / "table"
    options = ["--gen-subset", "test", "--cpu", "--output", str(output)]
    script("scripts.recipes.blockwise.table").main(
        [str(data), "--models", f"both/4={model}", *options]
    )
    assert "| both/4 | 500 | exact |" in output.with_suffix(".md").read_text()
    scores = json.loads(output.with_suffix(".json").read_text())["results"]
    return {score["rule"]: score for score in scores}


def train_heads(data: Path, base: Path, folder: Path, updates: int, *options: str) -> str:
    """Four heads on a base, into ``folder``; what was logged."""
    return command(
        "train", data, *USER_DIR, "--arch", "blockwise_transformer", "--base-checkpoint", base, "--block-size", "4",
        "--head-layout", "per-head", "--criterion", "blockwise_loss", "--head-loss", "mean", *TRAINING,
        "--max-update", str(updates), "--lr", "0.003", "--save-dir", folder, *options,
    )  # fmt: skip


def test_heads_learn_to_draft_and_change_nothing(data: Path, base: Path) -> None:
    folder = data.parent / "heads"
    train_heads(data, base, folder, 500)
    model = folder / "checkpoint_last.pt"
    stock, _ = decode(data, model, "--beam", "1")
    assert accuracy(stock, data) > LEARNT
    ours, printed = decode(data, model, "--decoding", "blockwise", "--draft-tokens", "all")
    assert ours == stock
    assert mean_accepted(printed) > 1.4
    table = table_of(data, model)
    assert table["exact"]["differ"] == 0
    assert table["exact"]["mean_accepted"] == pytest.approx(mean_accepted(printed), abs=0.01)
    assert table["top-3"]["mean_accepted"] >= table["exact"]["mean_accepted"]
    assert table["minimum block 3"]["mean_accepted"] > 2


def test_heads_on_a_frozen_base_write_what_the_base_wrote(data: Path, base: Path) -> None:
    """Trained in two goes; the base is not there any more when they decode."""
    folder = data.parent / "frozen"
    written, _ = decode(data, base, "--beam", "1")
    lent = Path(shutil.copy(base, data.parent / "lent.pt"))
    for updates in (100, 250):
        log = train_heads(
            data,
            lent,
            folder,
            updates,
            "--freeze-base",
            "--identity-first-head",
            "--disable-validation",
        )
    assert "(epoch 2 @ 100 updates)" in log  # it went on
    lent.unlink()
    ours, printed = decode(
        data, folder / "checkpoint_last.pt", "--decoding", "blockwise", "--draft-tokens", "all"
    )
    assert ours == written
    assert mean_accepted(printed) > 1.1
