"""Block heads with layers of their own: the same output, and what the layers say is what the trained module says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.models.block_heads import other_heads
from tests.equality.test_blockwise import blockwise, headed
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_task,
    random_sources,
    stock,
)

NORMS = pytest.mark.parametrize("pre_norm", [False, True])


def layered(
    pre_norm: bool = False, chain: bool = True, identity: bool = True, layers: int = 2
) -> Any:
    """A random model whose heads and layers say much."""
    options = {"decoder_normalize_before": pre_norm, "head_layers": layers, "slot_chain": chain}
    model = headed("per-head", identity, **options)
    torch.manual_seed(3)
    with torch.no_grad():
        for part in (model.decoder.heads, model.decoder.head_layers, model.decoder.chain):
            for parameter in part.parameters() if part is not None else ():
                parameter.normal_(0, 0.4)
    return model


@NORMS
@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("rows", [1, 6])
def test_output_is_head_1s_own(pre_norm: bool, chain: bool, rows: int) -> None:
    model = layered(pre_norm, chain)
    sample = make_batch(random_sources(3, rows))
    prefix = torch.tensor([[5, 6, 7], *[[9, 1, 1]] * (rows - 1)])
    for options in ({}, {"min_len": 6, "max_len_b": 9}):
        expected = stock([model], sample, prefix, **options)
        for chosen in ({}, {"draft_tokens": 2}, {"draft_tokens": "auto"}):
            for nodes in (None, "7", "auto"):
                found = blockwise(model, sample, prefix, draft_tree=nodes, **chosen, **options)
                assert_same(found, expected)


@NORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layers_say_what_the_module_says(pre_norm: bool, dtype: torch.dtype) -> None:
    """When rows have ended, too, and with fewer heads."""
    model = layered(pre_norm).to(dtype)
    fast = CachedDecoder(model.decoder)
    net_input = make_batch(random_sources(3, 6))["net_input"]
    features, chosen = torch.randn(6, 16).to(dtype), torch.tensor([5, 9, 7, 5, 30, 12])
    close = {"atol": 0.1, "rtol": 0.05} if dtype is torch.bfloat16 else {}
    with torch.inference_mode():
        encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
        fast.start(encoder_out, 6, 9)
        expected = model.decoder.head_features(
            features.unsqueeze(1), range(1, 4), chosen.unsqueeze(1), encoder_out
        ).squeeze(1)
        without = model.decoder.heads(features, range(1, 4))
        assert (expected - without).abs().mean() > 0.5
        for count in (4, 2):
            found, _ = fast.heads.propose(features, count, chosen=chosen)
            torch.testing.assert_close(found.to(dtype), expected[:, : count - 1], **close)
        fast.keep_rows([1, 5, 3])
        for rows in [1, 5, 3], [1, 5]:  # the first rows that are left
            found, _ = fast.heads.propose(features[rows], 4, chosen=chosen[rows])
            torch.testing.assert_close(found.to(dtype), expected[rows], **close)


def test_a_head_reads_its_token_the_source_and_the_heads_before_it() -> None:
    model = layered()
    decoder = model.decoder
    features, chosen = torch.randn(2, 3, 16), torch.randint(4, 30, (2, 3))
    net_input = make_batch([[5, 6, 7], [9, 8, 7]])["net_input"]
    with torch.no_grad():
        encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
        found = decoder.head_features(features, range(1, 4), chosen, encoder_out)
        other = chosen.clone()
        other[0, 1] = 31
        changed = decoder.head_features(features, range(1, 4), other, encoder_out) != found
        assert changed.any(-1).any(-1).tolist() == [[False, True, False], [False] * 3]
        states = encoder_out["encoder_out"][0].clone()
        states[2, 1] += 1
        moved = encoder_out | {"encoder_out": [states]}
        changed = decoder.head_features(features, range(1, 4), chosen, moved) != found
        assert changed.any(-1).any(-1).tolist() == [[False] * 3, [True] * 3]
        few = [
            decoder.head_features(features, heads, chosen, encoder_out)
            for heads in ([1, 2], [2, 3])
        ]
        first = decoder.head_features(features, range(3), chosen, encoder_out)
    # To rounding: products of another shape are added up in another order on some processors.
    torch.testing.assert_close(few[0], found[..., :2, :])
    torch.testing.assert_close(few[1], found[..., 1:, :])
    torch.testing.assert_close(first[..., 1:, :], found[..., :2, :])
    assert torch.equal(first[..., 0, :], features)


def test_heads_of_other_positions_are_hidden() -> None:
    seen = [[int(not hidden) for hidden in row] for row in other_heads(2, 2, torch.device("cpu"))]
    assert seen == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_the_first_iteration_drafts_from_what_was_learned_for_it() -> None:
    model = layered(chain=False)
    sample = make_batch(random_sources(3, 6))
    found = blockwise(model, sample, retain_iter_history=True)
    assert_same(found, stock([model], sample))
    net_input = sample["net_input"]
    with torch.no_grad():
        encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
        opening = model.decoder.head_layers.opening.expand(6, 1, -1)
        slots = model.decoder.head_features(
            opening, range(1, 4), torch.full((6, 1), 2), encoder_out
        )
        likeliest = model.decoder.output_projection(slots[:, 0]).argmax(-1).tolist()
    assert [h["history"][0]["tokens"].tolist() for h in found] == likeliest


def test_another_batch_is_another_source() -> None:
    model = layered(chain=False, identity=False)
    task = make_task("blockwise")
    generator = task.build_generator([model], generation_options())
    for seed, rows in (1, 3), (2, 3), (1, 3):
        sample = make_batch(random_sources(seed, rows))
        found = task.inference_step(generator, [model], sample)
        assert_same([hypotheses[0] for hypotheses in found], stock([model], sample))


def test_layers_with_nan_end_drafting(caplog: pytest.LogCaptureFixture) -> None:
    model, sample = layered(), make_batch(random_sources(3, 5))
    with torch.no_grad():
        model.decoder.head_layers.layers[0].fc1.bias[0] = torch.nan
    found = blockwise(model, sample)
    assert_same(found, stock([model], sample))
    assert "block heads have NaN or infinity in their weight" in caplog.text
    assert all(h["steps"] == len(h["tokens"]) for h in found)


def test_another_way_of_proposing_makes_other_layers() -> None:
    model = layered()
    fast = CachedDecoder(model.decoder)
    net_input = make_batch(random_sources(3, 2))["net_input"]
    features, chosen = torch.randn(2, 16), torch.tensor([5, 9])
    with torch.inference_mode():
        encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
        fast.start(encoder_out, 2, 9)
        found = [fast.heads.propose(features, 4, int8, chosen)[0] for int8 in (False, True, False)]
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
