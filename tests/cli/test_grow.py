"""Growing a trained checkpoint by its command, and going on from there with stock fairseq."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_aggdec.stored.loading import load_checkpoint
from scripts.recipes import grow
from tests.cli.commands import Result, Trained


def _grow(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["grow.py", *map(str, arguments)])
    grow.main()


def test_a_grown_checkpoint_decodes_and_says_nearly_the_same(
    trained: Trained, stock: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large.pt"
    _grow(monkeypatch, trained.checkpoint, large)
    small_state, state = load_checkpoint(str(trained.checkpoint)), load_checkpoint(str(large))
    for name in ("encoder_embed_dim", "decoder_layers", "decoder_attention_heads"):
        assert state["cfg"]["model"][name] == 2 * getattr(small_state["cfg"]["model"], name)
    assert [path.name for path in tmp_path.iterdir()] == ["large.pt"]
    found = trained.generate("stock", path=large)
    assert found.texts().keys() == stock.texts().keys()
    assert found.texts("H") == trained.generate("greedy", path=large).texts("H")


def test_what_is_not_a_stock_transformer_is_refused(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = load_checkpoint(str(trained.checkpoint))
    state["cfg"] = OmegaConf.to_container(OmegaConf.create(state["cfg"]), enum_to_str=True)
    state["cfg"]["model"].arch = "lattice_transformer"
    torch.save(state, tmp_path / "lattice.pt")
    with pytest.raises(
        SystemExit, match=r"lattice\.pt holds no Transformer of stock fairseq and none"
    ):
        _grow(monkeypatch, tmp_path / "lattice.pt", tmp_path / "large.pt")
