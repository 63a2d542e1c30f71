"""Generalized aggressive decoding: the verifier's greedy output, whatever a non-autoregressive drafter proposes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_aggdec.criterions.glancing_loss import GlancingLoss, GlancingLossConfig
from fairseq_aggdec.methods import gad as gad_method
from tests.support import (
    SIZES,
    assert_same,
    edited,
    generate,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
    trained_copier,
)

EOS = 2
VARIANTS: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "causal": {"prefix_attention": "causal"},
    "source copy": {"src_embedding_copy": True, "decoder_learned_pos": True},
    "source copy, causal": {"src_embedding_copy": True, "prefix_attention": "causal"},
    "next": {"slot_predicts": "next"},
    "next, source copy, causal": {
        "slot_predicts": "next",
        "src_embedding_copy": True,
        "prefix_attention": "causal",
    },
    "next, chain, causal": {
        "slot_predicts": "next",
        "slot_chain": True,
        "prefix_attention": "causal",
    },
    "chain": {"slot_chain": True},
    "published": {"published_form": True, "src_embedding_copy": True, "decoder_learned_pos": True},
    "embedding norm": {"layernorm_embedding": True, "decoder_normalize_before": True},
}
ALL = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


def drafter(seed: int = 3, block_size: int = 5, **options: Any) -> Any:
    return make_model(make_task(), seed, "nar_drafter", block_size=block_size, **options)


def handed_over(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Decodes with a drafter that is handed over instead of loaded."""

    def run(
        model: Any,
        verifiers: list[Any],
        sample: dict[str, Any],
        prefix: Tensor | None = None,
        **options: Any,
    ) -> Any:
        monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: model)
        names = ("draft_tokens", "acceptance", "int8", "draft_tree")
        chosen = {name: options.pop(name) for name in names if name in options}
        task = make_task(options.pop("decoding", "gad"), drafter_path="drafter.pt", **chosen)
        return generate(task, verifiers, sample, prefix, **options)

    return run


@pytest.fixture
def gad(monkeypatch: pytest.MonkeyPatch) -> Any:
    return handed_over(monkeypatch)


@ALL
@pytest.mark.parametrize("rows", [1, 8])
def test_output_is_the_verifiers(gad: Any, variant: dict[str, Any], rows: int) -> None:
    verifier, model = make_model(make_task(), 5), drafter(**variant)
    for seed in range(2):
        sample = make_batch(random_sources(seed, rows))
        assert_same(gad(model, [verifier], sample), stock([verifier], sample))


@ALL
@pytest.mark.parametrize("nodes", ["1", "4", "40", "auto"])
def test_trees(gad: Any, variant: dict[str, Any], nodes: str) -> None:
    verifier, model = make_model(make_task(), 5), drafter(**variant)
    sample = make_batch(random_sources(4, 6))
    for options in ({}, {"draft_tokens": "auto"}, {"int8": "drafts"}):
        found = gad(model, [verifier], sample, draft_tree=nodes, **options)
        assert_same(found, stock([verifier], sample))


def test_trees_with_prefixes_and_ensembles(gad: Any) -> None:
    verifiers = [make_model(make_task(), seed) for seed in (1, 2)]
    sample = make_batch(random_sources(8, 3))
    prefix = torch.tensor([[5, 6, 7], [9, 1, 1], [4, 4, 1]])
    options = {"min_len": 5, "unkpen": -1.0}
    found = gad(drafter(), verifiers, sample, prefix, draft_tree="9", **options)
    assert_same(found, stock(verifiers, sample, prefix, **options))


def test_prefixes_longer_than_the_drafter_reads(gad: Any) -> None:
    verifier = make_model(make_task(), 5)
    short = drafter(max_target_positions=4, decoder_learned_pos=True)
    sample = make_batch(random_sources(9, 6))
    assert_same(gad(short, [verifier], sample), stock([verifier], sample))


def test_outputs_as_long_as_sources_that_are_longer_than_the_verifier_says(gad: Any) -> None:
    verifier = make_model(make_task(), 5, max_target_positions=6)
    sample = make_batch(random_sources(9, 6, longest=20))
    expected = stock([verifier], sample, match_source_len=True)
    assert max(len(hypothesis["tokens"]) for hypothesis in expected) > 7
    assert_same(gad(drafter(), [verifier], sample, match_source_len=True), expected)
    learned = make_model(make_task(), 5, max_target_positions=6, decoder_learned_pos=True)
    fitting = make_batch([[4, 5, 6, 7], [8]])
    found = gad(drafter(), [learned], fitting, match_source_len=True)
    assert_same(found, stock([learned], fitting, match_source_len=True))
    with pytest.raises(ValueError, match=r"up to 6 tokens and </s>.* learned 6 positions"):
        gad(drafter(), [learned], make_batch([[4, 5, 6, 7, 8]]), match_source_len=True)


def saying(constant: int, **options: Any) -> Any:
    """A drafter that says one thing."""
    model = drafter(**options)
    with torch.no_grad():
        model.decoder.layers[-1].final_layer_norm.weight.zero_()
        model.decoder.layers[-1].final_layer_norm.bias.copy_(
            10 * model.decoder.output_projection.weight[constant]
        )
    return model


@pytest.mark.parametrize("constant", [EOS, 1, 3, 7])
def test_a_drafter_that_says_one_thing(gad: Any, constant: int) -> None:
    """``</s>`` at once, padding, ``<unk>``, a word."""
    verifier = make_model(make_task(), 5)
    sample = make_batch(random_sources(4, 5))
    found = gad(saying(constant), [verifier], sample)
    assert_same(found, stock([verifier], sample))


def test_an_encoder_shared_with_the_verifier_runs_once(
    gad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier, model = make_model(make_task(), 5), drafter()
    model.encoder.load_state_dict(verifier.encoder.state_dict())
    model.shares_encoder = True
    sample = make_batch(random_sources(6, 4))
    expected = stock([verifier], sample)
    monkeypatch.setattr("fairseq_aggdec.drafters.nar.FastEncoder", None)  # neither made nor run
    assert_same(gad(model, [verifier], sample), expected)
    with pytest.raises(ValueError, match="its encoder is not that of --path"):
        gad(model, [make_model(make_task(), 9)], sample)
    # Training in half precision leaves the drafter's copy of the encoder rounded.
    model.encoder.bfloat16().float()
    assert_same(gad(model, [verifier], sample), expected)


def test_more_is_accepted_as_acceptance_is_relaxed(gad: Any) -> None:
    verifier, model = make_model(make_task(), 5), drafter()
    sample = make_batch(random_sources(13, 8))
    exact = gad(model, [verifier], sample)
    assert_same(gad(model, [verifier], sample, acceptance="top-beta:1"), exact)

    def steps(acceptance: str) -> int:
        found = gad(model, [verifier], sample, acceptance=acceptance)
        return sum(hypothesis["steps"] for hypothesis in found)

    assert steps("top-beta:30:100") < steps("top-beta:1")


# -- a drafter that has learnt something


def learn_to_draft(updates: int = 500) -> Any:
    """A tiny drafter for the task of :func:`tests.support.edited`."""
    task = make_task()
    sizes = {
        "encoder_embed_dim": 32,
        "decoder_embed_dim": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
    }
    options = {
        "dropout": 0.0,
        "share_all_embeddings": True,
        "block_size": 4,
        "weight_init": "stock",
    }
    args = Namespace(**(SIZES | sizes | options))
    ARCH_CONFIG_REGISTRY["nar_drafter"](args)
    torch.manual_seed(1)
    model: Any = ARCH_MODEL_REGISTRY["nar_drafter"].build_model(args, task).train()
    config = GlancingLossConfig(sentence_avg=False, max_update=updates, seed=1)
    criterion = GlancingLoss(config, task)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, updates)
    for update in range(updates):
        sources = random_sources(1000 + update, 48)
        sample = make_batch(sources)
        targets = [torch.tensor([*edited(source), EOS]) for source in sources]
        sample["target"] = torch.nn.utils.rnn.pad_sequence(targets, True, 1)
        model.set_num_updates(update)
        loss, size, _ = criterion(model, sample)
        optimizer.zero_grad()
        (loss / size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def test_a_trained_drafter_saves_as_many_iterations_as_ever(gad: Any) -> None:
    _, verifier = trained_copier(updates=400)
    model = learn_to_draft()
    sample = make_batch(random_sources(31, 40))
    expected = stock([verifier], sample)
    gained = {}
    for nodes in (None, "4", "16"):
        found = gad(model, [verifier], sample, draft_tree=nodes)
        assert_same(found, expected)
        tokens = sum(len(hypothesis["tokens"]) for hypothesis in found)
        gained[nodes] = tokens / sum(hypothesis["steps"] for hypothesis in found)
    # With these seeds 2.63, 2.73 and 2.97: a change of training or drafting that loses tokens is noticed here.
    assert 2.4 < gained[None] < 2.9
    assert gained[None] < gained["4"] and 2.75 < gained["16"] < 3.3


# -- refusals
