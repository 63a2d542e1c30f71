"""Options and Limits: what stock's generator was built with makes ours, and both end outputs at the same places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

from fairseq_aggdec.options.options import SPARE_POSITIONS, Options
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.guards import one_thread
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_dictionary,
    make_model,
    make_task,
)

GIVEN: dict[str, Any] = {
    "beam": 3,
    "max_len_a": 0.5,
    "max_len_b": 7,
    "min_len": 2,
    "unnormalized": True,
    "lenpen": 0.6,
    "unkpen": 1.5,
    "temperature": 1.3,
    "no_repeat_ngram_size": 2,
}


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(make_task("stock"), 1)


def of_stock(model: Any, **options: Any) -> SequenceGenerator:
    task = make_task("stock", model.encoder.dictionary, model.decoder.dictionary)
    generator = task.build_generator([model], generation_options(**options))
    assert type(generator) is SequenceGenerator
    return generator


def test_options_of_stock_are_those_that_were_given(model: Any) -> None:
    found = Options.of(of_stock(model, **GIVEN))
    assert (found.beam_size, found.max_len_a, found.max_len_b, found.min_len) == (3, 0.5, 7, 2)
    assert (found.normalize_scores, found.len_penalty, found.unk_penalty) == (False, 0.6, 1.5)
    assert (found.temperature, found.no_repeat_ngram_size) == (1.3, 2)
    assert found.stripped == {found.eos} and found.print_alignment is None


def test_a_generator_of_ours_made_of_stocks_fields_finds_what_stock_finds(model: Any) -> None:
    theirs = of_stock(model, **{**GIVEN, "no_repeat_ngram_size": 0})
    options = Options.of(theirs)
    ours = BeamGenerator([model], theirs.tgt_dict, counters=Counters(), **options.arguments())
    assert Options.of(ours) == options
    sample = make_batch([[5, 6, 7], [8, 9, 10, 11]])
    for found, expected in zip(
        ours.generate([model], sample), theirs.generate([model], sample), strict=True
    ):
        assert [one["tokens"].tolist() for one in found] == [
            one["tokens"].tolist() for one in expected
        ]


def test_limits_are_stocks(model: Any) -> None:
    net_input = make_batch([[5, 6, 7], [8, 9, 10, 11]])["net_input"]
    limits = Options.of(of_stock(model, **GIVEN)).limits(net_input, [model])
    assert (limits.ends, limits.floor, limits.exact) == ([9, 9], 2, False)  # int(0.5 * 5 + 7)
    assert limits.capacity == limits.longest + 1 == 10
    matched = Options.of(of_stock(model, match_source_len=True))
    limits = matched.limits(net_input, [model])
    assert (limits.ends, limits.exact) == ([4, 5], True)
    assert matched.limits(net_input, [model], longest=4).ends == [4, 4]
    without = {"src_tokens": net_input["src_tokens"]}  # stock does not count </s> then
    assert matched.limits(without, [model]).ends == [3, 4]


def test_the_first_cache_is_no_larger_than_outputs_often_are(model: Any) -> None:
    source = torch.full((1, 6), 5)
    limits = Options.of(of_stock(model, max_len_b=200)).limits({"src_tokens": source}, [model])
    assert limits.capacity == 6 + SPARE_POSITIONS


@pytest.mark.parametrize("longest", [None, 6])
def test_a_minimum_length_above_the_maximum(model: Any, longest: int | None) -> None:
    options = Options.of(of_stock(model, min_len=8, max_len_b=7))
    with pytest.raises(ValueError, match="--min-len 8 is larger than the maximum length"):
        options.limits({"src_tokens": torch.full((1, 2), 5)}, [model], longest)


CHANGES: list[dict[str, Any]] = [
    {"beam_size": 2},
    {"beam_size": 1},
    {"beam_size": 7},
    {"unk_penalty": 3.0},
    {"unk_penalty": -3.0},
    {"eos": 6},
    {"eos": 0},
    {"unk": 5, "unk_penalty": -2.0},
    {"pad": 6},
    {"temperature": 0.6},
    {"len_penalty": -1.0, "normalize_scores": True},
    {"max_len_b": 3, "min_len": 2},
    {"max_len": 3},
]


@pytest.fixture(scope="module")
def few_words() -> tuple[Any, list[dict[str, Any]]]:
    """A model of a small vocabulary, and batches."""
    dictionary = make_dictionary(["a", "b", "c", "d"])
    model = make_model(make_task("stock", dictionary, dictionary), 4)
    return model, [make_batch([[4, 5, 6, 7], [6, 5]]), make_batch([[7, 6, 4]])]


def assert_as_stock(
    few_words: Any, beam: int, draft_from: str, change: Callable[[Any], object]
) -> None:
    """Our n-best lists are stock's, in all batches; ``change`` is made of a generator behind each."""
    model, batches = few_words
    dictionary = model.decoder.dictionary
    found = []
    for decoding in ("beam", "stock"):
        task = make_task(decoding, dictionary, dictionary, draft_from=draft_from)
        generator = task.build_generator([model], generation_options(beam=beam, max_len_b=7))
        ranked = []
        for batch in batches:
            ranked += task.inference_step(generator, [model], batch)
            change(generator)
        found.append([[(one["tokens"].tolist(), one["score"]) for one in own] for own in ranked])
    for own, theirs in zip(*found, strict=True):
        assert [tokens for tokens, _ in own] == [tokens for tokens, _ in theirs]
        for (_, one), (_, other) in zip(own, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("draft_from", ["source", "none"])
def test_fields_that_change_between_two_batches(
    few_words: Any, draft_from: str, beam: int, change: dict[str, Any]
) -> None:
    """The next batch is decoded as the fields say then, or left to stock."""

    def set_all(generator: Any) -> None:
        for name, value in change.items():
            setattr(generator, name, value)

    assert_as_stock(few_words, beam, draft_from, set_all)


MODELS: dict[str, Callable[[Any, Any], object]] = {
    "another ensemble": lambda generator, other: setattr(generator, "model", EnsembleModel(other)),
    "another model in it": lambda generator, other: setattr(generator.model.models, "0", other[0]),
    "one model more": lambda generator, other: setattr(
        generator, "model", EnsembleModel([generator.model.models[0], *other])
    ),
}


@pytest.mark.parametrize("change", MODELS)
@pytest.mark.parametrize("beam", [1, 3])
def test_models_that_change_between_two_batches(few_words: Any, beam: int, change: str) -> None:
    dictionary = few_words[0].decoder.dictionary
    other = [make_model(make_task("stock", dictionary, dictionary), 9)]
    assert_as_stock(few_words, beam, "source", lambda own: MODELS[change](own, other))


def test_the_loop_of_a_gpu_reads_what_the_verifier_has_taken_up(few_words: Any) -> None:
    """It is another where two generators that share one decode at the same time."""
    model, _ = few_words
    dictionary = model.decoder.dictionary
    task = make_task("greedy", dictionary, dictionary)
    generator = task.build_generator([model], generation_options())
    loop = generator._loop()
    assert generator._loop() is loop
    with one_thread(generator.verifier):
        generator._lock_verifier()
    assert generator._loop().reader is generator.verifier


@pytest.mark.parametrize("penalty", [-1000.0, -60.0, -20.0, 20.0, 40.0, 60.0, 1.5])
def test_a_penalty_far_out_ranks_as_stock_does(model: Any, penalty: float) -> None:
    """Stock divides in fp32, by 0 and by infinity too."""
    theirs = of_stock(model, beam=3, lenpen=penalty, max_len_b=14, min_len=9)
    ours = BeamGenerator(
        [model], theirs.tgt_dict, counters=Counters(), **Options.of(theirs).arguments()
    )
    sample = make_batch([[5, 6, 7], [8, 9, 10, 11]])
    found, expected = ours.generate([model], sample), theirs.generate([model], sample)
    for own, stocks in zip(found, expected, strict=True):
        assert_same(own, stocks)
    divided = torch.tensor(-3.25).div_(12**penalty) if penalty < 1000 else None
    assert divided is None or Options.of(theirs).score(-3.25, 12) == pytest.approx(float(divided))


@pytest.mark.parametrize("decoding", ["beam", "stock", "greedy"])
@pytest.mark.parametrize("name", ["lenpen", "unkpen", "temperature"])
def test_numbers_that_make_scores_infinite_are_refused(
    decoding: str, name: str, model: Any
) -> None:
    task = make_task(decoding, model.encoder.dictionary, model.decoder.dictionary)
    for value in (float("nan"), float("-inf")):
        with pytest.raises(ValueError, match=f"^--{name} {value}: it must be a finite number$"):
            task.build_generator([model], generation_options(**{name: value}))
