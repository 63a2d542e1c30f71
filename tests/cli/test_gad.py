"""A drafter from ``fairseq-train`` to ``fairseq-generate --decoding gad`` and ``nar``."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest
from fairseq_cli import train

from fairseq_aggdec.stored.loading import load_checkpoint
from tests.cli.commands import PLUGIN, TRAINING, Result, Trained, run
from tests.cli.test_tools import script

SIZES = shlex.split(
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32 "
    "--encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64 --encoder-attention-heads 2 --decoder-attention-heads 2 "
    "--max-source-positions 40 --max-target-positions 40 --share-all-embeddings --dropout 0"
)
SHORT_TRAINING = [option for option in TRAINING if option != "--disable-validation"]


def train_drafter(
    trained: Trained, folder: Path, updates: int, *more: str, verifier: Path | None = None
) -> Result:
    options = shlex.split(
        "--arch nar_drafter --block-size 4 --criterion glancing_loss --glancing-updates 300 "
        f"--label-smoothing 0.1 --max-update {updates} --save-interval-updates 100 --no-epoch-checkpoints "
        "--validate-interval-updates 100 --eval-acceptance-sentences 20 --log-format simple "
        "--best-checkpoint-metric mean_accepted --maximize-best-checkpoint-metric"
    )
    start = ["--share-verifier-encoder", trained.checkpoint]
    start += ["--init-decoder-from", trained.checkpoint]
    return run(
        train.cli_main,
        *[trained.data, *PLUGIN, *options, *SIZES, *SHORT_TRAINING],
        *[*start, "--eval-acceptance", verifier or trained.checkpoint, "--save-dir", folder, *more],
    )


@pytest.fixture(scope="module")
def drafter(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafter")
    result = train_drafter(trained, folder, 100)
    assert result.logged(r"valid on 'valid' subset.*mean_accepted")
    assert result.logged("glancing_ratio")
    return folder / "checkpoint_best.pt"


def test_training_resumes(trained: Trained, drafter: Path) -> None:
    before = load_checkpoint(str(drafter.parent / "checkpoint_last.pt"))
    assert before["optimizer_history"][-1]["num_updates"] == 100
    result = train_drafter(trained, drafter.parent, 105)
    assert result.logged(r"Loaded checkpoint .*checkpoint_last\.pt")
    after = load_checkpoint(str(drafter.parent / "checkpoint_last.pt"))
    assert after["optimizer_history"][-1]["num_updates"] == 105


@pytest.mark.parametrize(
    "options",
    [
        "--amp",
        "--amp --prefix-attention causal --src-embedding-copy",
        "--amp --slot-predicts next --slot-chain --slot-decay 0.8",
    ],
)
def test_half_precision(trained: Trained, tmp_path: Path, stock: Result, options: str) -> None:
    """Trained in half precision, validated against a verifier, it drafts for the verifier in fp32."""
    result = train_drafter(trained, tmp_path, 3, *options.split())
    assert result.logged(r"valid on 'valid' subset.*mean_accepted")
    found = trained.generate("gad", "--drafter-path", tmp_path / "checkpoint_last.pt")
    assert found.texts("H") == stock.texts("H")


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--draft-tokens 2",
        "--draft-tokens auto",
        "--batch-size 1",
        "--int8 drafts",
        "--draft-tree 6",
        "--draft-tree auto --batch-size 7",
    ],
)
def test_gad_equals_stock(trained: Trained, stock: Result, drafter: Path, options: str) -> None:
    found = trained.generate("gad", "--drafter-path", drafter, *shlex.split(options))
    assert found.texts("H") == stock.texts("H")
    assert found.logged("Translated 53 sentences")


def test_relaxed_acceptance_says_that_it_is_not_lossless(trained: Trained, drafter: Path) -> None:
    options = shlex.split("--acceptance top-beta:3:2.0")
    found = trained.generate("gad", "--drafter-path", drafter, *options)
    assert found.logged("not lossless")
    assert len(found.lines("H")) == 53


def test_the_drafter_alone(trained: Trained, drafter: Path) -> None:
    found = trained.generate("nar", "--drafter-path", drafter, "--print-step")
    assert len(found.lines("H")) == 53
    steps = found.lines("I")
    for name, text in found.texts("H").items():
        tokens = len(text.split()) + 1
        assert int(steps[name]) == -(-tokens // 4)


def test_trace_of_drafter_and_verifier(
    trained: Trained, drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sentence 2 with exact acceptance, and with one that lets stand whatever is drafted."""
    page = tmp_path / "pages" / "report.html"
    options = [str(trained.data), *PLUGIN[:2], "--path", str(trained.checkpoint), "--cpu"]
    options += ["--decoding", "gad", "--drafter-path", str(drafter), "--sentences", "2"]
    options += ["--report", str(page)]
    script("trace").main(options)
    printed = re.sub(r"[\[\]~]", "", capsys.readouterr().out)  # marks, where no colours are
    (output,) = re.findall(r"^output +(.*)$", printed, re.MULTILINE)
    assert output == trained.generate("gad", "--drafter-path", drafter).texts()["2"]
    verified = re.findall(r"^ +V (.*)$", printed, re.MULTILINE)
    assert verified[-1] == f"{output} </s>"
    assert len(verified) == len(re.findall(r"^ +\d+ D ", printed, re.MULTILINE))
    text = html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))
    saved = re.sub(r"[\[\]~]", "", text)
    assert re.findall(r"^ +V (.*)$", saved, re.MULTILINE) == verified
    assert "another token" not in printed

    script("trace").main([*options, "--acceptance", "min:5"])
    assert "though the verifier would have written another token" in capsys.readouterr().out


def test_trace_of_trees(
    trained: Trained, drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [str(trained.data), *PLUGIN[:2], "--path", str(trained.checkpoint), "--cpu"]
    options += ["--decoding", "gad", "--drafter-path", str(drafter), "--sentences", "2"]
    script("trace").main([*options, "--draft-tree", "6"])
    printed = capsys.readouterr().out
    (output,) = re.findall(r"^output +(.*)$", printed, re.MULTILINE)
    assert output == trained.generate("gad", "--drafter-path", drafter).texts()["2"]
    assert "another token" not in printed
