"""A drafter in the form of GAD's authors: converted, it has the logits that their code computed (tests/origins)."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.cli import convert
from fairseq_aggdec.methods.shared.loading import load_drafter
from fairseq_aggdec.stored.loading import CheckpointError
from tests.support import (
    assert_same,
    generate,
    make_batch,
    make_dictionary,
    make_model,
    make_task,
    random_sources,
    stock,
)

PAD, UNK, WIDTH, HIDDEN, HEADS, BLOCK, LONGEST, LAYERS = 1, 3, 16, 24, 2, 4, 40, 2
SOURCES = random_sources(3, 4)
PREFIXES: list[list[int]] = [[], [5], [6, UNK, 7, 8], [9, 10]]
# Logits of the slots behind each prefix: (4, k, V), from tests/origins/specdec.py.
RECORDED = Path(__file__).with_name("specdec_drafter.json")


def weights() -> dict[str, Tensor]:
    """Names and shapes of a model ``block`` with shared embeddings, two layers a side."""
    torch.manual_seed(7)
    types = len(make_dictionary())
    shapes: dict[str, tuple[int, ...]] = {"decoder.copy_attn.weight": (WIDTH, WIDTH)}
    for side, attentions in (
        ("encoder", ["self_attn"]),
        ("decoder", ["self_attn", "encoder_attn"]),
    ):
        shapes[f"{side}.embed_positions.weight"] = (LONGEST + PAD + 1, WIDTH)
        for number in range(LAYERS):
            layer = f"{side}.layers.{number}"
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes[f"{layer}.{attention}.{part}.weight"] = (WIDTH, WIDTH)
                    shapes[f"{layer}.{attention}.{part}.bias"] = (WIDTH,)
            for part, shape in (("fc1", (HIDDEN, WIDTH)), ("fc2", (WIDTH, HIDDEN))):
                shapes[f"{layer}.{part}.weight"] = shape
                shapes[f"{layer}.{part}.bias"] = shape[:1]
            for norm in (
                *(f"{attention}_layer_norm" for attention in attentions),
                "final_layer_norm",
            ):
                shapes[f"{layer}.{norm}.weight"] = shapes[f"{layer}.{norm}.bias"] = (WIDTH,)
    found = {name: torch.randn(shape) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    table = torch.randn(types, WIDTH)
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"):
        found[f"{name}.weight"] = table
    return found


def options(**more: Any) -> Namespace:
    shape: dict[str, Any] = {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    shape |= {"arch": "block", "activation_fn": "gelu", "block_size": BLOCK}
    return Namespace(**shape, share_all_embeddings=True, src_embedding_copy=True, **more)


def converted(folder: Path, *arguments: str, **state: Any) -> str:
    kept = {
        "model": weights(),
        "optimizer_history": [{}],
        "extra_state": {},
        "last_optimizer_state": None,
    }
    torch.save(kept | state, folder / "theirs.pt")
    convert.main([str(folder / "theirs.pt"), str(folder / "ours"), *arguments])
    return str(folder / "ours" / "model.pt")


@pytest.mark.parametrize("kept", ["args", "cfg"])
def test_logits_are_theirs_and_drafts_are_lossless(tmp_path: Path, kept: str) -> None:
    state = (
        {"args": options()}
        if kept == "args"
        else {"args": None, "cfg": {"model": options(), "task": {}}}
    )
    path = converted(tmp_path, **state)
    model = load_drafter(path, make_task())
    longest = max(map(len, PREFIXES))
    slots = [model.decoder.mask_index] * BLOCK
    tokens = torch.tensor([[PAD] * (longest - len(row)) + row + slots for row in PREFIXES])
    sample = make_batch(SOURCES)
    with torch.no_grad():
        found = model.decoder.output_layer(model(**sample["net_input"], prev_output_tokens=tokens))
    recorded = torch.tensor(json.loads(RECORDED.read_text(encoding="utf-8")))
    torch.testing.assert_close(found, recorded, atol=1e-4, rtol=1e-4)
    verifier = make_model(make_task(), 5)
    assert_same(
        generate(make_task("gad", drafter_path=path), [verifier], sample), stock([verifier], sample)
    )


def test_what_is_no_drafter_of_theirs_is_refused(tmp_path: Path) -> None:
    given = options()
    del given.block_size
    with pytest.raises(CheckpointError, match="name --block-size"):
        converted(tmp_path, args=given)
    model = weights()
    del model["decoder.copy_attn.weight"]
    with pytest.raises(CheckpointError, match="no drafter of the authors of GAD"):
        converted(tmp_path, args=options(), model=model)
    assert not (tmp_path / "ours").exists()
    assert (
        load_drafter(
            converted(tmp_path, "--block-size", "3", args=given), make_task()
        ).decoder.block_size
        == 3
    )
