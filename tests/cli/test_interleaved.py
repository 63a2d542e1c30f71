"""Models that write in several places, from ``fairseq-train`` to ``fairseq-generate --decoding interleaved``."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from fairseq_cli import train

from tests.cli.commands import PLUGIN, TRAINING, Result, Trained, run

SIZES = shlex.split(
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32 "
    "--encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64 --encoder-attention-heads 2 --decoder-attention-heads 2 "
    "--max-source-positions 40 --max-target-positions 40 --share-all-embeddings --dropout 0"
)


def train_writer(trained: Trained, folder: Path, *options: str, updates: int) -> Result:
    more = ["--arch", "interleaved_transformer", "--max-update", str(updates), "--save-dir", folder]
    more += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    return run(train.cli_main, *[trained.data, *PLUGIN, *SIZES, *TRAINING, *more, *options])


@pytest.fixture(scope="module")
def writer(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An IBDecoder that begins as the Transformer."""
    folder = tmp_path_factory.mktemp("writer")
    start = ["--base-checkpoint", str(trained.checkpoint), "--no-epoch-checkpoints"]
    train_writer(trained, folder, "--directions", "2", *start, updates=300)
    return folder / "checkpoint_last.pt"


def test_two_words_per_step(trained: Trained, writer: Path) -> None:
    found = trained.generate("interleaved", "--beam", "4", "--print-step", path=writer)
    texts, steps = found.texts("H"), found.lines("I")
    assert len(texts) == 53
    for name, text in texts.items():
        assert int(steps[name]) >= -(-(len(text.split()) + 1) // 2)


def test_nbest_and_options(trained: Trained, writer: Path) -> None:
    options = shlex.split("--beam 4 --nbest 2 --end-condition all --dedup 2 --stop-rule printed")
    found = trained.generate("interleaved", *options, path=writer)
    names = [line.split("\t")[0] for line in found.stdout.splitlines() if line.startswith("H-")]
    assert 53 < len(names) <= 106


def test_the_transformer_itself_is_stock_beam_search(trained: Trained) -> None:
    ours = trained.generate("interleaved", "--beam", "4")
    theirs = trained.generate("beam", "--beam", "4")
    assert ours.texts("H") == theirs.texts("H")


def test_it_drafts_for_the_transformer(trained: Trained, stock: Result, writer: Path) -> None:
    options = ["--draft-from", "interleaved", "--drafter-path", str(writer)]
    assert trained.generate("iad", *options).texts("H") == stock.texts("H")


def test_refusals_come_before_a_sentence_is_decoded(trained: Trained, writer: Path) -> None:
    with pytest.raises(ValueError, match="--prefix-size does not go with --decoding interleaved"):
        trained.generate("interleaved", "--prefix-size", "1", path=writer)
    with pytest.raises(ValueError, match="decodes with --decoding interleaved only"):
        trained.generate("beam", path=writer)
    with pytest.raises(ValueError, match="--directions 3"):
        train_writer(trained, writer.parent / "never", "--directions", "3", updates=1)
