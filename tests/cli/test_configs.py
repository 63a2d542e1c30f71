"""The configurations of configs/ train with fairseq-hydra-train as they stand: two updates each on the tests' data."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_aggdec.stored.loading import load_checkpoint
from tests.cli.commands import ROOT, SENTENCES, Trained, run_process

CONFIGS = ROOT / "configs"
SMALL = [
    f"model.{side}_{size}"
    for side in ("encoder", "decoder")
    for size in ("layers=1", "embed_dim=32", "ffn_embed_dim=64", "attention_heads=2")
]
POSITIONS = ["+model.max_source_positions=40", "+model.max_target_positions=40"]
DECODER = [word for word in SMALL if "decoder" in word]
# name of a file -> what is given beside its data; FILE is a trained Transformer
OVERRIDES = {
    "verifier": SMALL,
    "nar_drafter": [
        *(f"{key}=FILE" for key in ("model.share_verifier_encoder", "model.init_decoder_from")),
        *("criterion.eval_acceptance=FILE", *DECODER, *POSITIONS),
    ],
    "block_heads": ["model.base_checkpoint=FILE"],
    "interleaved": SMALL,
    "lattice_scorer": ["model.base_checkpoint=FILE"],
    "transformer_small": [*SMALL, "task.eval_bleu_remove_bpe='@@ '"],
}
DECODED = {"nar_drafter": "gad", "block_heads": "blockwise", "interleaved": "interleaved"}


def test_every_file_is_run() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(OVERRIDES)
    page = (CONFIGS / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}.yaml]({name}.yaml)" in page for name in OVERRIDES)


@pytest.mark.parametrize("name", OVERRIDES)
def test_two_updates(name: str, trained: Trained, tmp_path: Path) -> None:
    given = [word.replace("FILE", str(trained.checkpoint)) for word in OVERRIDES[name]]
    done = run_process(
        "hydra_train",
        *("--config-dir", CONFIGS, "--config-name", name),
        *(f"common.user_dir={ROOT / 'fairseq_aggdec'}", f"task.data={trained.data}", *given),
        *("common.cpu=true", "optimization.max_update=2", "dataset.num_workers=0"),
        *(f"hydra.run.dir={tmp_path}/run", f"checkpoint.save_dir={tmp_path}/checkpoints"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    checkpoint = tmp_path / "checkpoints" / "checkpoint_last.pt"
    state = load_checkpoint(str(checkpoint))
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert str(trained.checkpoint) not in str(state["cfg"]["model"])  # it stands by itself
    if name in DECODED:
        decodes(DECODED[name], trained, checkpoint)
        assert "mean_accepted" in done.stderr + done.stdout or name == "interleaved"


def decodes(decoding: str, trained: Trained, checkpoint: Path) -> None:
    """The checkpoint is whole, and what it drafts is verified."""
    if decoding == "gad":
        found = trained.generate("gad", "--drafter-path", checkpoint)
        assert found.texts() == trained.generate("stock").texts()
    elif decoding == "blockwise":
        found = trained.generate("blockwise", path=checkpoint)
        assert found.texts() == trained.generate("stock").texts()  # a frozen base
    else:
        assert len(trained.generate(decoding, path=checkpoint).texts()) == SENTENCES["test"]
