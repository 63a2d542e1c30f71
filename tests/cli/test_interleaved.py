"""Models that write in several places, from ``fairseq-train`` to ``fairseq-generate --decoding interleaved``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from fairseq_cli import train

from fairseq_aggdec.stored.loading import load_checkpoint
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


def test_training_resumes(trained: Trained, tmp_path: Path) -> None:
    """What was interrupted ends as what was not, the trained embeddings of the directions included."""
    for folder, stops in (("whole", (20,)), ("parts", (10, 20))):
        for updates in stops:
            options = ["--directions", "4", "--no-epoch-checkpoints"]
            result = train_writer(trained, tmp_path / folder, *options, updates=updates)
    assert result.logged(r"Loaded checkpoint .*parts/checkpoint_last\.pt")
    whole, parts = (
        load_checkpoint(str(tmp_path / folder / "checkpoint_last.pt"))
        for folder in ("whole", "parts")
    )
    assert parts["optimizer_history"][-1]["num_updates"] == 20
    assert "decoder.embed_positions.directions.weight" in parts["model"]
    torch.testing.assert_close(parts["model"], whole["model"])


def test_validation_decodes_while_training_in_half_precision(
    trained: Trained, tmp_path: Path
) -> None:
    training = [option for option in TRAINING if option != "--disable-validation"]
    options = shlex.split(
        "--amp --arch interleaved_transformer --criterion label_smoothed_cross_entropy --max-update 4 "
        "--decoding interleaved --eval-bleu --best-checkpoint-metric bleu --maximize-best-checkpoint-metric "
        "--no-epoch-checkpoints --log-format simple"
    )
    options += ["--eval-bleu-args", '{"beam": 2, "max_len_b": 20}', "--save-dir", str(tmp_path)]
    result = run(train.cli_main, trained.data, *PLUGIN, *SIZES, *training, *options)
    assert result.logged(r"valid on 'valid' subset.* decoded_accepted .* bleu ")
    assert (tmp_path / "checkpoint_best.pt").exists()


def test_two_words_per_step(trained: Trained, writer: Path) -> None:
    found = trained.generate("interleaved", "--beam", "4", "--print-step", path=writer)
    texts, steps = found.texts("H"), found.lines("I")
    assert len(texts) == 53
    for name, text in texts.items():
        assert int(steps[name]) >= -(-(len(text.split()) + 1) // 2)


def test_a_line_per_step_in_reading_order(trained: Trained, writer: Path) -> None:
    options = ["--beam", "2", "--min-len", "4", "--print-step", "--retain-iter-history"]
    found = trained.generate("interleaved", *options, path=writer)
    steps, texts = found.lines("I"), found.texts("H")
    traces: dict[str, list[list[str]]] = {}
    for name, line in re.findall(r"^E-(\d+)_\d+\t(.*)$", found.stdout, re.MULTILINE):
        traces.setdefault(name, []).append(line.split())
    assert set(traces) == set(texts)
    for name, trace in traces.items():
        words = texts[name].split()
        assert len(trace) == len(words) // 2 + 1 <= int(steps[name])
        # From both ends; </s>, which has no word, comes last.
        assert trace[0] == [words[0], *["<pad>"] * (len(words) - 2), words[-1], "<pad>"]
        assert trace[-1] == words


def test_nbest_and_options(trained: Trained, writer: Path) -> None:
    options = shlex.split(
        "--beam 4 --nbest 2 --variant end-condition=all,dedup=2,stop-rule=any,length-penalty=gnmt"
    )
    found = trained.generate("interleaved", *options, path=writer)
    names = [line.split("\t")[0] for line in found.stdout.splitlines() if line.startswith("H-")]
    assert 53 < len(names) <= 106


def test_the_transformer_itself_is_stock_beam_search(trained: Trained) -> None:
    ours = trained.generate("interleaved", "--beam", "4")
    theirs = trained.generate("stock", "--beam", "4")
    assert ours.texts("H") == theirs.texts("H")
