"""A grown Transformer computes what the small one computes, at twice its sizes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

from scripts.recipes.grow import enlarged, grow
from tests.support import SIZES, make_batch, make_model, make_task, random_sources

PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
SHARED = {"share_all_embeddings": True}
DOUBLED = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")


def _grown(seed: int, **options: Any) -> tuple[Any, Any, dict[str, Any]]:
    """A random model, the model grown from it, and the options that growing gives."""
    task = make_task()
    small = make_model(task, seed, **options)
    complete = Namespace(**(SIZES | options))
    ARCH_CONFIG_REGISTRY["transformer"](complete)
    doubled = enlarged(vars(complete))
    state = grow(small.state_dict(), vars(complete))
    sizes = {
        f"{side}_{name}": SIZES[f"{side}_{name}"] * 2
        for side in ("encoder", "decoder")
        for name in DOUBLED
    }
    large = make_model(task, seed, **{**options, **sizes})
    large.load_state_dict(state)
    return small, large, doubled


def _log_probabilities(model: Any) -> Tensor:
    batch = make_batch(random_sources(3, 5))["net_input"]
    previous = torch.tensor([[2, 7, 9, 30, 12, 5, 8]]).expand(5, -1)
    with torch.no_grad():
        return model.get_normalized_probs(model(**batch, prev_output_tokens=previous), True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        SHARED,
        {**SHARED, "no_scale_embedding": True},
        {"share_decoder_input_output_embed": True, "layernorm_embedding": True},
    ],
    ids=("untied", "tied", "not scaled", "norm behind embeddings"),
)
def test_the_same_function_at_twice_the_sizes(options: dict[str, Any]) -> None:
    small, large, doubled = _grown(1, **PRE, **LEARNED, **options)
    assert torch.allclose(_log_probabilities(large), _log_probabilities(small), atol=1e-4)
    assert (doubled["encoder_embed_dim"], doubled["decoder_layers"]) == (32, 4)
    assert doubled["decoder_output_dim"] == 32


@pytest.mark.parametrize("tied", [True, False], ids=("tied", "untied"))
def test_a_drafter_grows_and_keeps_its_layers(tied: bool) -> None:
    task = make_task()
    options = {**PRE, **LEARNED, "share_decoder_input_output_embed": tied, "block_size": 3}
    options |= {"slot_chain": True, "slot_predicts": "next", "prefix_attention": "causal"}
    small = make_model(task, 5, "nar_drafter", **options)
    complete = Namespace(**(SIZES | options))
    ARCH_CONFIG_REGISTRY["nar_drafter"](complete)
    sizes = enlarged(vars(complete) | {"encoder_options": vars(complete)})
    assert sizes["decoder_layers"] == SIZES["decoder_layers"]
    assert sizes["encoder_options"]["encoder_embed_dim"] == 2 * SIZES["encoder_embed_dim"]
    larger = {name: sizes[name] for name in SIZES}
    large = make_model(task, 6, "nar_drafter", **{**options, **larger})
    large.load_state_dict(grow(small.state_dict(), vars(complete)))
    source = make_batch(random_sources(3, 5))["net_input"]
    reading = source["src_tokens"], source["src_lengths"]
    slots = torch.tensor([[7, 9] + [small.decoder.mask_index] * 3]).expand(5, -1)
    said = []
    for model in (small, large):
        with torch.no_grad():
            features = model.eval()(*reading, slots)
            told = model.decoder.chained(features, torch.tensor([[9, 30, 12]]).expand(5, -1))
            said.append(torch.stack([model.decoder.output_layer(x) for x in (features, told)]))
    assert torch.allclose(*said, atol=1e-4)
    assert not torch.allclose(said[0][0], said[0][1], atol=1e-2)


def test_a_drafter_grows_with_the_encoder_of_its_verifier() -> None:
    """As long as both are grown with the same seed."""
    verifier = make_model(make_task(), 7, **PRE, **SHARED)
    drafter = make_model(make_task(), 8, "nar_drafter", **PRE, block_size=3)
    drafter.encoder.load_state_dict(verifier.encoder.state_dict())
    grown = []
    for arch, model in (("transformer", verifier), ("nar_drafter", drafter)):
        options = Namespace(**(SIZES | PRE | (SHARED if model is verifier else {"block_size": 3})))
        ARCH_CONFIG_REGISTRY[arch](options)
        state = grow(model.state_dict(), vars(options))
        grown.append({name: x for name, x in state.items() if name.startswith("encoder.")})
    assert grown[0].keys() == grown[1].keys()
    assert all(torch.equal(x, grown[1][name]) for name, x in grown[0].items())


def test_norms_behind_the_layers_come_near_it() -> None:
    small, large, _ = _grown(2, **LEARNED, **SHARED)
    of_small, of_large = _log_probabilities(small), _log_probabilities(large)
    of_another = _log_probabilities(make_model(make_task(), 4, **LEARNED, **SHARED))
    apart = (of_large - of_small).abs().mean()
    assert 1e-4 < apart < 0.2 * (of_another - of_small).abs().mean()


def test_copies_are_free_to_part() -> None:
    """The two copies of a unit get gradients of their own."""
    _, large, _ = _grown(3, **PRE, **LEARNED, **SHARED)
    batch = make_batch(random_sources(3, 5))["net_input"]
    output = large(**batch, prev_output_tokens=torch.tensor([[2, 7, 9]]).expand(5, -1))
    large.get_normalized_probs(output, True)[..., 5].sum().backward()
    for layer in large.decoder.layers[::2]:
        first, second = layer.fc1.weight.grad[0::2], layer.fc1.weight.grad[1::2]
        assert not torch.allclose(first, second, rtol=0.05)
    assert any(p.grad.abs().max() > 0 for p in large.decoder.layers[1].fc2.parameters())


def test_what_cannot_be_grown_is_named() -> None:
    small = make_model(make_task(), 1)
    options = Namespace(**SIZES)
    ARCH_CONFIG_REGISTRY["transformer"](options)
    with pytest.raises(SystemExit, match=r"decoder\.gate is not a parameter"):
        grow({**small.state_dict(), "decoder.gate": torch.zeros(3)}, vars(options))
    with pytest.raises(SystemExit, match="attention heads of encoder and decoder"):
        grow(small.state_dict(), {**vars(options), "decoder_attention_heads": 4})


@pytest.mark.parametrize("pre_norm", [True, False], ids=("pre-norm", "post-norm"))
@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("layout", ["dense", "per-head"])
def test_heads_grow_with_their_base(layout: str, layers: int, pre_norm: bool) -> None:
    """From features that are twice the small ones, as large as a grown base makes them: the same logits."""
    options = {**SHARED, **LEARNED, "decoder_normalize_before": pre_norm, "head_layout": layout}
    options |= {"block_size": 3, "slot_chain": True, "head_hidden_dim": 8, "head_layers": layers}
    small = make_model(task := make_task(), 5, "blockwise_transformer", **options)
    with torch.no_grad():
        for part in (small.decoder.heads, small.decoder.chain):
            for parameter in part.parameters():
                parameter.normal_(0, 0.3)
    complete = Namespace(**(SIZES | options))
    ARCH_CONFIG_REGISTRY["blockwise_transformer"](complete)
    sizes = enlarged(vars(complete))
    assert (sizes["head_hidden_dim"], sizes["head_layers"]) == (16, layers)
    larger = {name: sizes[name] for name in (*SIZES, "head_hidden_dim")}
    large = make_model(task, 6, "blockwise_transformer", **{**options, **larger})
    grown = grow(small.state_dict(), vars(complete))
    large.load_state_dict(grown)
    base = {n: x for n, x in small.state_dict().items() if ".heads." not in n and "head_" not in n}
    alone = grow(
        {n: x for n, x in base.items() if ".chain." not in n}, vars(complete) | {"head_layers": 0}
    )
    assert all(torch.equal(grown[name], value) for name, value in alone.items())
    features, chosen = torch.randn(2, 3, 16), torch.randint(4, 30, (2, 3))
    states = torch.randn(4, 2, 16)
    found = []
    for model, scale in ((small, 1.0), (large, 0.5 * 2**0.5)):
        twice = 1 if model is small else 2
        encoder_out = {"encoder_out": [states.repeat_interleave(twice, -1)]}
        encoder_out["encoder_padding_mask"] = []
        read = features.repeat_interleave(twice, -1) * scale
        if layers:  # and from where there are no features yet
            read = model.decoder.head_layers.opened(read)[:, :3]
        with torch.no_grad():
            slots = model.decoder.head_features(read, range(1, 3), chosen, encoder_out)
            before = chosen.unsqueeze(2).expand(2, 3, 2)
            told = model.decoder.chained(slots, before)
            found.append([model.decoder.output_projection(x) for x in (slots, told)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-3)
