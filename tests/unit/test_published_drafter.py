"""A drafter in the form of GAD's authors: converted, it has the logits that their code computes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.cli import convert
from fairseq_aggdec.compat import CheckpointError
from fairseq_aggdec.methods.shared.loading import load_drafter
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

PAD, UNK, WIDTH, HIDDEN, HEADS, BLOCK, LONGEST = 1, 3, 16, 24, 2, 4, 40


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
        for number in range(2):
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


def attend(given: dict[str, Tensor], name: str, x: Tensor, memory: Tensor) -> Tensor:
    """(T, C) over (S, C)."""

    def heads(part: str, of: Tensor) -> Tensor:
        made = F.linear(of, given[f"{name}.{part}.weight"], given[f"{name}.{part}.bias"])
        return made.unflatten(1, (HEADS, -1)).transpose(0, 1)

    q, k, v = heads("q_proj", x), heads("k_proj", memory), heads("v_proj", memory)
    scores = (q @ k.transpose(1, 2)) * (WIDTH // HEADS) ** -0.5
    y = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
    return F.linear(y, given[f"{name}.out_proj.weight"], given[f"{name}.out_proj.bias"])


def layer(given: dict[str, Tensor], name: str, x: Tensor, memory: Tensor | None) -> Tensor:
    def norm(part: str, y: Tensor) -> Tensor:
        return F.layer_norm(
            y, (WIDTH,), given[f"{name}.{part}.weight"], given[f"{name}.{part}.bias"]
        )

    x = norm("self_attn_layer_norm", x + attend(given, f"{name}.self_attn", x, x))
    if memory is not None:
        y = attend(given, f"{name}.encoder_attn", x, memory)
        x = norm("encoder_attn_layer_norm", x + y)
    y = F.gelu(F.linear(x, given[f"{name}.fc1.weight"], given[f"{name}.fc1.bias"]))
    return norm(
        "final_layer_norm", x + F.linear(y, given[f"{name}.fc2.weight"], given[f"{name}.fc2.bias"])
    )


def their_logits(given: dict[str, Tensor], source: list[int], prefix: list[int]) -> Tensor:
    """What their NATransformerEncoder and NATransformerDecoder do with one row: (k, V)."""
    table = given["decoder.embed_tokens.weight"]
    embedded = table[torch.tensor(source)]
    places = given["encoder.embed_positions.weight"][PAD + 1 :][: len(source)]
    memory = embedded + places
    for number in range(2):
        memory = layer(given, f"encoder.layers.{number}", memory, None)
    tokens = torch.tensor([*prefix, *[UNK] * BLOCK])
    positions = given["decoder.embed_positions.weight"][PAD + 1 :][: len(tokens)]
    asked = (positions @ given["decoder.copy_attn.weight"].T) @ (embedded + places).T
    x = torch.where(tokens.eq(UNK)[:, None], asked.softmax(-1) @ embedded, table[tokens])
    for number in range(2):
        x = layer(given, f"decoder.layers.{number}", x + positions, memory)
    return (x @ table.T)[-BLOCK:]


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
    sources, prefixes = random_sources(3, 4), [[], [5], [6, UNK, 7, 8], [9, 10]]
    longest = max(map(len, prefixes))
    slots = [model.decoder.mask_index] * BLOCK
    tokens = torch.tensor([[PAD] * (longest - len(row)) + row + slots for row in prefixes])
    sample = make_batch(sources)
    with torch.no_grad():
        found = model.decoder.output_layer(model(**sample["net_input"], prev_output_tokens=tokens))
    rows = sample["net_input"]["src_tokens"].tolist()
    expected = [
        their_logits(weights(), [token for token in row if token != PAD], prefix)
        for row, prefix in zip(rows, prefixes, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-4)
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
