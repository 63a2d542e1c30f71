"""Models that were altered before their first batch, or are changed between two: the output is stock's, always.

Every alteration is decoded by beam search, greedily and with copied drafts; by generators that were made before it, and
by new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import nn
from torch.nn.utils import parametrize

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import FastEncoder
from fairseq_aggdec.methods import gad as gad_method
from tests.alterations import Change, layers, lively
from tests.changes import ALTERED, Twice
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
)

BATCH = make_batch(random_sources(7, 2, longest=7))
METHODS = {"beam": 5, "greedy": 1, "iad": 1}


def nbest(generator: Any, models: list[Any]) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = make_task().inference_step(generator, models, BATCH)
    return found


def generator_of(method: str, models: list[Any], beam: int, **options: Any) -> Any:
    task = make_task(method, **options)
    return task.build_generator(models, generation_options(beam=beam, max_len_b=6))


def assert_equal(found: list[list[Any]], expected: list[list[Any]]) -> None:
    assert [len(ranked) for ranked in found] == [len(ranked) for ranked in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


def by_stock(models: list[Any], beam: int) -> list[list[dict[str, Any]]]:
    generator = generator_of("stock", models, beam)
    assert type(generator) is SequenceGenerator
    return nbest(generator, models)


def differ(one: list[list[Any]], other: list[list[Any]]) -> bool:
    """Whether the best hypotheses do, in tokens or clearly in score."""
    return any(
        a["tokens"].tolist() != b["tokens"].tolist() or abs(float(a["score"] - b["score"])) > 1e-3
        for (a, *_), (b, *_) in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def unaltered() -> list[list[dict[str, Any]]]:
    return by_stock([lively()], 1)


def test_there_are_at_least_forty() -> None:
    assert len(ALTERED) >= 40


@pytest.mark.parametrize("name", ALTERED)
@pytest.mark.filterwarnings("ignore")
def test_altered_or_changed(name: str, unaltered: list[list[dict[str, Any]]]) -> None:
    models = [lively()]
    older = {method: generator_of(method, models, beam) for method, beam in METHODS.items()}
    nbest(older["beam"], models)
    ALTERED[name](models[0])
    models[0].eval()
    expected = {beam: by_stock(models, beam) for beam in (1, 5)}
    assert differ(expected[1], unaltered) or name == "another type", "it alters nothing"
    for method, beam in METHODS.items():
        assert_equal(nbest(older[method], models), expected[beam])
    for method in ("beam", "iad"):
        beam = METHODS[method]
        if (name, method) == ("padding of positions", "iad"):  # beam search is left to stock
            with pytest.raises(ValueError, match="whose padding is not that of the dictionary"):
                generator_of(method, models, beam)
        else:
            assert_equal(nbest(generator_of(method, models, beam), models), expected[beam])


# What is not a change of the output


def test_a_plain_model_has_its_fast_forms_and_keeps_them() -> None:
    models = [lively()]
    generator = generator_of("iad", models, 1)
    (member,) = generator.verifier.members
    forms = member.encoder, member.decoder
    for _ in range(3):
        nbest(generator, models)
        by_stock(models, 5)  # writes nothing that was read
    assert (member.encoder, member.decoder) == forms
    assert isinstance(member.encoder, FastEncoder) and isinstance(member.decoder, CachedDecoder)


@pytest.mark.parametrize("altered", [False, True])
def test_what_bart_does_for_beam_search(altered: bool) -> None:
    """It replaces a method of its encoder when a generator is made."""
    models = [make_model(make_task(), 3, "bart_base", max_positions=None)]
    if altered:
        ALTERED["hook on linear"](models[0])
    for method, beam in sorted(METHODS.items(), reverse=True):  # stock is greedy before it searches
        generator = generator_of(method, models, beam)
        assert_equal(nbest(generator, models), by_stock(models, beam))
        if not altered:
            (member,) = generator.verifier.members
            assert isinstance(member.encoder, FastEncoder)
            assert isinstance(member.decoder, CachedDecoder)
    assert "reorder_encoder_out" in vars(models[0].encoder)


def test_what_an_encoder_returns_beside_its_states_may_get_lost() -> None:
    """Stock drops it when it orders the rows; nothing reads it there."""
    models = [lively()]
    forward = models[0].encoder.forward
    models[0].encoder.forward = lambda *args, **more: (
        forward(*args, **more) | {"more": torch.ones(1)}
    )
    generator = generator_of("beam", models, 5)
    assert_equal(nbest(generator, models), by_stock(models, 5))
    (member,) = generator.verifier.members
    assert "more" in member.encoder_out and member.stock_only is None


def test_what_is_taken_back_is_fast_again() -> None:
    models = [lively()]
    generator = generator_of("beam", models, 5)
    hook = layers(models[0])[1].fc2.register_forward_hook(lambda module, inputs, output: output * 2)
    nbest(generator, models)
    (member,) = generator.verifier.members
    assert member.stock_only == "a Linear with hooks" and member.encoder_gap is None
    hook.remove()
    assert_equal(nbest(generator, models), by_stock(models, 5))
    assert isinstance(member.decoder, CachedDecoder)


def test_training_mode_counts_where_something_is_dropped() -> None:
    models = [lively()]
    generator = generator_of("greedy", models, 1)
    models[0].train()
    nbest(generator, models)  # finds out
    assert_equal(seeded(nbest, generator, models), seeded(by_stock_as_it_is, models))
    models[0].eval()
    assert_equal(nbest(generator, models), by_stock(models, 1))


def seeded(decode: Callable[..., Any], *arguments: Any) -> Any:
    torch.manual_seed(5)
    return decode(*arguments)


def by_stock_as_it_is(models: list[Any]) -> Any:
    """By a stock generator that does not end training mode."""
    generator = generator_of("stock", models, 1)
    models[0].train()
    return nbest(generator, models)


# What is said


@pytest.mark.parametrize("name", ["hook on linear", "probabilities"])
def test_it_is_said_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    models = [lively()]
    generator = generator_of("iad", models, 1)
    ALTERED[name](models[0])
    for _ in range(3):
        nbest(generator, models)
    said = [record.getMessage() for record in caplog.records]
    expected = "a Linear with hooks" if name == "hook on linear" else "get_normalized_probs() of"
    assert [expected in line for line in said].count(True) == 1
    assert "left to stock fairseq" in said[-1]


@pytest.mark.parametrize("options", [{"int8": True}, {"strict": 4}])
@pytest.mark.parametrize("name", ["hook on linear", "probabilities"])
def test_what_needs_the_fast_form_is_refused(name: str, options: dict[str, Any]) -> None:
    refused = pytest.raises(ValueError, match="needs the decoder of a stock Transformer, not")
    models = [lively()]
    generator = generator_of("greedy", models, 1, **options)
    nbest(generator, models)
    ALTERED[name](models[0])
    for _ in range(2):
        with refused:
            nbest(generator, models)
    with refused:
        generator_of("greedy", models, 1, **options)


# Several models, drafters, heads


@pytest.mark.parametrize("name", ["hook on linear", "part of data", "probabilities"])
@pytest.mark.parametrize("method", METHODS)
def test_one_model_of_an_ensemble(name: str, method: str) -> None:
    models = [lively(11), lively(1)]
    beam = METHODS[method]
    generator = generator_of(method, models, beam)
    nbest(generator, models)
    ALTERED[name](models[1])
    assert_equal(nbest(generator, models), by_stock(models, beam))
    assert_equal(nbest(generator_of(method, models, beam), models), by_stock(models, beam))


@pytest.mark.parametrize("name", ["hook on linear", "part of data", "probabilities", "no bias"])
def test_verifier_and_drafter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [lively()]
    drafter = make_model(make_task(), 3, "nar_drafter", block_size=4)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter)
    generator = generator_of("gad", models, 1, drafter_path="drafter.pt")
    nbest(generator, models)
    for changed in (drafter, models[0]):
        if changed is models[0] or name != "probabilities":
            ALTERED[name](changed)
        assert_equal(nbest(generator, models), by_stock(models, 1))
    again = generator_of("gad", models, 1, drafter_path="drafter.pt")
    assert_equal(nbest(again, models), by_stock(models, 1))


@pytest.mark.parametrize("name", ["hook on linear", "part of data", "no bias"])
def test_a_drafter_alone_drafts_by_its_own_layers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, drafter = [lively()], make_model(make_task(), 3, "nar_drafter", block_size=4)
    monkeypatch.setattr(gad_method, "load_drafter", lambda path, task: drafter)
    older = generator_of("nar", models, 1, drafter_path="drafter.pt")
    nbest(older, models)
    ALTERED[name](drafter)
    newer = generator_of("nar", models, 1, drafter_path="drafter.pt")
    with mock.patch("fairseq_aggdec.drafters.slots.decoder_gap", return_value="asked for"):
        plain = generator_of("nar", models, 1, drafter_path="drafter.pt")
        expected = nbest(plain, models)
    assert_equal(nbest(older, models), expected)
    assert_equal(nbest(newer, models), expected)


def expand_more(model: Any) -> None:
    parametrize.register_parametrization(model.decoder.heads.contract, "weight", Twice())


def write_to_heads(model: Any) -> None:
    model.decoder.heads.contract.weight.data[2:] += 1


@pytest.mark.parametrize(
    "change",
    [ALTERED["hook on linear"], ALTERED["probabilities"], expand_more, write_to_heads],
)
def test_block_heads(change: Change) -> None:
    torch.manual_seed(2)
    models = [make_model(make_task(), 3, "blockwise_transformer", block_size=4)]
    generator = generator_of("blockwise", models, 1)
    nbest(generator, models)
    change(models[0])
    assert_equal(nbest(generator, models), by_stock(models, 1))


# Everywhere


def test_hooks_on_every_module() -> None:
    models = [lively()]
    generator = generator_of("beam", models, 5)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output * 1.5 if isinstance(module, nn.LayerNorm) else None
    )
    try:
        assert_equal(nbest(generator, models), by_stock(models, 5))
    finally:
        hook.remove()
    assert_equal(nbest(generator, models), by_stock(models, 5))


def test_a_class_of_torch_that_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    models, forward = [lively()], nn.LayerNorm.forward
    generator = generator_of("iad", models, 1)
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: forward(self, x) * 1.5)
    assert_equal(nbest(generator, models), by_stock(models, 1))


# Inference mode


@pytest.mark.parametrize("method", METHODS)
def test_everything_inside_inference_mode(method: str) -> None:
    beam = METHODS[method]
    with torch.inference_mode():
        models = [lively()]
        generator = generator_of(method, models, beam)
        found = nbest(generator, models)
        assert_equal(found, by_stock(models, beam))
        ALTERED["part of data"](models[0])
        assert_equal(nbest(generator, models), by_stock(models, beam))
    assert_equal(nbest(generator, models), by_stock(models, beam))
    assert_equal(nbest(generator_of(method, models, beam), models), by_stock(models, beam))


# Few numbers, written past PyTorch


def test_few_numbers_are_seen_when_told() -> None:
    models = [lively()]
    generator = generator_of("iad", models, 1)
    nbest(generator, models)
    weight = models[0].encoder.layers[0].fc1.weight.detach().numpy()
    weight[8, 6] += 9
    generator.refresh()
    assert_equal(nbest(generator, models), by_stock(models, 1))


def test_between_building_and_packing() -> None:
    """Training builds its generator, packs nothing, and goes on with the model."""
    models = [lively()]
    generator = generator_of("beam", models, 5, eval_bleu=True)
    ALTERED["hook on linear"](models[0])
    assert_equal(nbest(generator, models), by_stock(models, 5))


@pytest.mark.parametrize("method", ["beam", "blockwise"])
def test_built_while_a_model_trains(method: str) -> None:
    """Dropout, which every generator ends, is no alteration."""
    arch = "blockwise_transformer" if method == "blockwise" else "transformer"
    models = [make_model(make_task(), 3, arch).train()]
    beam = 5 if method == "beam" else 1
    generator = generator_of(method, models, beam, eval_bleu=True)
    assert type(generator) is not SequenceGenerator
    assert_equal(nbest(generator, models), by_stock(models, beam))
    (member,) = generator.verifier.members
    assert isinstance(member.decoder, CachedDecoder)


@pytest.mark.parametrize("name", ["hook on linear", "probabilities"])
@pytest.mark.parametrize("method", METHODS)
def test_alignments(name: str, method: str) -> None:
    models, beam = [lively()], METHODS[method]
    ALTERED[name](models[0])
    options = generation_options(beam=beam, max_len_b=6, print_alignment="hard")
    ours, theirs = (make_task(m).build_generator(models, options) for m in (method, "stock"))
    found, expected = nbest(ours, models), nbest(theirs, models)
    assert_equal(found, expected)
    for ranked, others in zip(found, expected, strict=True):
        for one, other in zip(ranked, others, strict=True):
            assert one["alignment"] == other["alignment"]
