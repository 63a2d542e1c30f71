"""A grown Transformer computes what the small one computes, at twice its sizes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

from fairseq_aggdec.cli.grow import enlarged, grow
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
