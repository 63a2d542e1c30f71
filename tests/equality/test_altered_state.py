"""Altered models whose layers have a state, or see how many positions there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from tests.alterations import layers, lively
from tests.changes import ALTERED
from tests.equality.test_altered_models import (
    METHODS,
    assert_equal,
    by_stock,
    generator_of,
    nbest,
)
from tests.support import generation_options, make_batch, make_task, random_sources


class Counting(nn.Linear):
    """Gives more with every call, as a layer that learns while it decodes does."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 4)


class Lonely(nn.Linear):
    """Tells a position alone from several."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if len(x) == 1 else 1)


@pytest.mark.parametrize("kind", [Counting, Lonely])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layer", ["fc1", "self_attn.q_proj"])
def test_state_of_a_layer(kind: type, method: str, layer: str) -> None:
    found, expected = lively(), lively()
    for model in (found, expected):
        layers(model)[1].get_submodule(layer).__class__ = kind
    beam = METHODS[method]
    generator = generator_of(method, [found], beam)
    stock = generator_of("stock", [expected], beam)
    for _ in range(2):
        assert_equal(nbest(generator, [found]), nbest(stock, [expected]))


class LooksBack(nn.Linear):
    """Adds what stood three positions before, where it sees that."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        if len(x) > 3:
            earlier = torch.cat([torch.zeros_like(x[:3]), x[:-3]])
            found = found + earlier @ self.weight.t()
        return found


@pytest.mark.parametrize("method", ["greedy", "iad"])
def test_a_first_batch_of_one_sentence(method: str) -> None:
    models = [lively()]
    layers(models[0])[1].fc1.__class__ = LooksBack
    generator = generator_of(method, models, 1)
    stock = generator_of("stock", models, 1)
    for seed, rows in ((7, 1), (20, 3), (21, 3), (22, 3)):
        batch = make_batch(random_sources(seed, rows, longest=7))
        found = make_task().inference_step(generator, models, batch)
        assert_equal(found, make_task().inference_step(stock, models, batch))


# Further changes of a decoder that runs by its own layers already


def make_lonely(linear: Any) -> None:
    forward = linear.forward
    linear.forward = lambda x: forward(x) * (2 if len(x) == 1 else 1)


@pytest.mark.parametrize("method", ["greedy", "iad"])
def test_altered_twice(method: str) -> None:
    models = [lively()]
    generator = generator_of(method, models, 1)
    ALTERED["hook on linear"](models[0])
    assert_equal(nbest(generator, models), by_stock(models, 1))
    make_lonely(layers(models[0])[1].fc1)
    assert_equal(nbest(generator, models), by_stock(models, 1))


@pytest.mark.parametrize("name", ["forward", "activation_fn", "scaling"])
def test_what_was_put_onto_a_module_is_taken_back(name: str) -> None:
    models = [lively()]
    layer = layers(models[0])[1]
    module = {"forward": layer.fc1, "scaling": layer.self_attn}.get(name, layer)
    generator = generator_of("iad", models, 1)
    before, own = getattr(module, name), name in vars(module)
    setattr(module, name, before * 3 if name == "scaling" else lambda x: before(x).abs())
    nbest(generator, models)
    (member,) = generator.verifier.members
    assert member.stock_only is not None
    if own:
        setattr(module, name, before)
    else:
        delattr(module, name)
    assert_equal(nbest(generator, models), by_stock(models, 1))
    assert isinstance(member.decoder, CachedDecoder)


# Options in stock's search


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("method", ["beam", "iad"])
def test_no_ngram_is_repeated(method: str, size: int) -> None:
    models = [lively()]
    options = generation_options(beam=METHODS[method], max_len_b=12, no_repeat_ngram_size=size)
    generator = make_task(method).build_generator(models, options)
    probabilities = models[0].get_normalized_probs
    expected = nbest(generator, models)
    # As likely as before, but by a method of its own: stock has to search.
    models[0].get_normalized_probs = lambda *args, **kwargs: probabilities(*args, **kwargs)
    found = nbest(generator, models)
    assert generator.verifier.members[0].stock_only is not None
    assert_equal(found, expected)
    for ranked in found:
        for hypothesis in ranked:
            tokens = hypothesis["tokens"].tolist()
            grams = list(zip(*(tokens[i:] for i in range(size)), strict=False))
            assert len(grams) == len(set(grams))


@pytest.mark.parametrize("altered", [False, True])
def test_no_ngram_is_repeated_where_beam_search_is_left_to_stock(altered: bool) -> None:
    models = [lively()]
    options = generation_options(beam=5, max_len_b=12, no_repeat_ngram_size=2)
    fast = nbest(make_task("beam").build_generator(models, options), models)
    probabilities = models[0].get_normalized_probs
    if altered:
        models[0].get_normalized_probs = lambda *args, **kwargs: probabilities(*args, **kwargs)
    generator = make_task("beam").build_generator(models, options)
    assert (type(generator) is SequenceGenerator) == altered
    assert_equal(nbest(generator, models), fast)


@pytest.mark.parametrize("method", ["beam", "iad"])
def test_batches_that_are_left_to_stock_are_counted(method: str) -> None:
    models = [lively()]
    generator = generator_of(method, models, METHODS[method])
    ALTERED["probabilities"](models[0])
    found = nbest(generator, models)
    counters = generator.counters
    assert counters.sentences == len(found)
    assert counters.tokens == sum(len(ranked[0]["tokens"]) for ranked in found)
    assert counters.mean_accepted_tokens == 1


def test_attention_that_says_to_read_something_else() -> None:
    """Beam search with stock's layers reorders what it says to be self-attention only."""
    models = [lively()]
    attention = layers(models[0])[1].self_attn
    attention.self_attention, attention.encoder_decoder_attention = False, True
    generator = generator_of("beam", models, 5, eval_bleu=True)
    assert_equal(nbest(generator, models), by_stock(models, 5))
