"""``--decoding beam`` against stock beam search: every hypothesis, their order and their scores.

Options and prefixes are cases of ``tests/rule_cases.py``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_aggdec.search.beam.budget import Budget
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.windows.draft import Copies
from tests.equality.test_cached_decoder import VARIANTS
from tests.rule_cases import WorkingBlocker
from tests.support import (
    WORDS,
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    trained_copier,
)

NBest = list[list[dict[str, Any]]]


def stock(models: Sequence[Any], sample: Any, prefix: Any = None, **options: Any) -> NBest:
    """The oracle."""
    task = make_task("stock", models[0].encoder.dictionary, models[0].decoder.dictionary)
    generator = task.build_generator(list(models), generation_options(**options))
    if generator.repeat_ngram_blocker is not None:
        generator.repeat_ngram_blocker = WorkingBlocker(generator.repeat_ngram_blocker)
    return task.inference_step(generator, list(models), sample, prefix_tokens=prefix)


def generators(model: Any, **options: Any) -> tuple[Any, Any]:
    """Ours and stock's."""
    mine, oracle = (
        make_task(decoding).build_generator([model], generation_options(**options))
        for decoding in ("beam", "stock")
    )
    assert isinstance(mine, BeamGenerator)
    if oracle.repeat_ngram_blocker is not None:
        oracle.repeat_ngram_blocker = WorkingBlocker(oracle.repeat_ngram_blocker)
    return mine, oracle


def ours(
    models: Sequence[Any], sample: Any, prefix: Any = None, task: Any = None, **options: Any
) -> NBest:
    task = task or make_task("beam", models[0].encoder.dictionary, models[0].decoder.dictionary)
    generator = task.build_generator(list(models), generation_options(**options))
    assert isinstance(generator, BeamGenerator)
    return task.inference_step(generator, list(models), sample, prefix_tokens=prefix)


def assert_same_nbest(found: NBest, expected: NBest) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert [h["tokens"].tolist() for h in mine] == [h["tokens"].tolist() for h in theirs]
        assert_same(mine, theirs)


def flat(found: NBest) -> list[dict[str, Any]]:
    return [hypothesis for ranked in found for hypothesis in ranked]


@pytest.fixture(scope="module")
def copier() -> Any:
    return trained_copier()[1]


@pytest.mark.parametrize("beam", [2, 3, 5, 10])
@pytest.mark.parametrize("count", [1, 7])
def test_a_model_that_copies_with_edits(copier: Any, beam: int, count: int) -> None:
    sample = make_batch(random_sources(21, count, longest=25))
    options = {"beam": beam, "max_len_b": 40}
    task = make_task("beam")
    found = ours([copier], sample, task=task, **options)
    assert_same_nbest(found, stock([copier], sample, **options))
    assert task.counters.nodes >= task.counters.nodes_used > 0


def test_drafts_are_used(copier: Any) -> None:
    sample = make_batch(random_sources(22, 1, longest=25))
    calls = {}
    for draft_from in ("auto", "none"):
        task = make_task("beam", draft_from=draft_from)
        # One batch: a task keeps what it learns, and looking ahead behind the copied part does not pay here.
        ours([copier], sample, task=task, beam=4, max_len_b=40)
        calls[draft_from] = task.counters.iterations
    assert calls["auto"] < 0.8 * calls["none"]


@pytest.mark.parametrize("name", VARIANTS)
def test_decoders_of_every_form(name: str) -> None:
    model = make_model(make_task(), 3, **VARIANTS[name])
    sample = make_batch(random_sources(31, 4))
    assert_same_nbest(ours([model], sample, beam=3), stock([model], sample, beam=3))


def test_batches_without_numbers_and_lengths(copier: Any) -> None:
    """As a caller of ``generate`` may put them together; stock then counts lengths without ``</s>``."""
    sample = make_batch(random_sources(32, 4))
    sample = {"net_input": {"src_tokens": sample["net_input"]["src_tokens"]}}
    for options in ({}, {"match_source_len": True}):
        found, expected = (
            g.generate([copier], sample) for g in generators(copier, beam=3, **options)
        )
        assert_same_nbest(found, expected)


@pytest.mark.parametrize("alignment", ["hard", "soft"])
def test_alignment_of_every_hypothesis(copier: Any, alignment: str) -> None:
    sample = make_batch(random_sources(26, 4))
    options = {"beam": 3, "print_alignment": alignment}
    found, expected = (f([copier], sample, **options) for f in (ours, stock))
    assert_same_nbest(found, expected)
    for mine, theirs in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(mine["attention"], theirs["attention"][:, : len(mine["tokens"])])
        assert str(mine["alignment"]) == str(theirs["alignment"]) or alignment == "soft"


@pytest.mark.parametrize("beam", [1, 3])
def test_alignment_behind_another_start(copier: Any, beam: int) -> None:
    """Stock gathers attention behind the symbol that a call starts with, such as that of a language."""
    sample = make_batch(random_sources(26, 4))
    found, expected = (
        make_task(decoding)
        .build_generator([copier], generation_options(beam=beam, print_alignment="hard"))
        .generate([copier], sample, bos_token=9)
        for decoding in ("beam", "stock")
    )
    assert_same_nbest(found, expected)
    for mine, theirs in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(mine["attention"], theirs["attention"][:, : len(mine["tokens"])])


@pytest.mark.parametrize("beam", [1, 3])
def test_alignment_of_an_ensemble_in_which_one_shows_no_attention(copier: Any, beam: int) -> None:
    models = [copier, make_model(make_task(), 6, no_cross_attention=True)]
    sample = make_batch(random_sources(26, 4))
    found, expected = (
        make_task(decoding)
        .build_generator(models, generation_options(beam=beam, print_alignment="hard", max_len_b=9))
        .generate(models, sample)
        for decoding in ("iad" if beam == 1 else "beam", "stock")
    )
    assert_same_nbest(found, expected)
    for mine, theirs in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(mine["attention"], theirs["attention"][:, : len(mine["tokens"])])


@pytest.mark.parametrize("draft_from", ["source", "none"])
def test_one_hypothesis_of_several_that_are_asked_for(copier: Any, draft_from: str) -> None:
    """``--beam 1 --nbest 3``: stock gives one."""
    sample = make_batch(random_sources(26, 4))
    options: Any = generation_options(beam=1, nbest=3)
    task = make_task("beam", draft_from=draft_from)
    found = task.inference_step(task.build_generator([copier], options), [copier], sample)
    assert_same_nbest(found, stock([copier], sample, beam=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_what_stock_scores(copier: Any, dtype: torch.dtype) -> None:
    import copy

    model = copy.deepcopy(copier).to(dtype)
    sample = make_batch(random_sources(27, 4))
    found, expected = (f([model], sample, beam=3) for f in (ours, stock))
    same = 0
    for mine, theirs in zip(flat(found), flat(expected), strict=True):
        if mine["tokens"].tolist() == theirs["tokens"].tolist():
            same += 1
            torch.testing.assert_close(mine["score"], theirs["score"], atol=0.05, rtol=0.05)
    assert same >= len(flat(found)) // 2


def test_steps_and_history(copier: Any) -> None:
    sample = make_batch(random_sources(28, 3, longest=20))
    found = ours([copier], sample, beam=4, retain_iter_history=True, max_len_b=40)
    for ranked in found:
        for hypothesis in ranked:
            assert hypothesis["steps"] == len(hypothesis["history"]) >= 1
            assert hypothesis["history"][0]["tokens"].numel() == 0


def greedy_budget() -> Budget:
    """A budget that asks for as much as possible, whatever it brings."""
    budget = Budget("cpu")
    budget.call_cost, budget.most, budget.least_gain = 1e9, 200, 0.0
    return budget


def rotten(sample: Any, verifier: Any) -> Copies:
    """Texts that are wrong in every way: random words, ends, padding, unknown words."""
    chance = random.Random(1)
    rows = len(sample["net_input"]["src_tokens"])
    texts = [[2, *(chance.randrange(0, WORDS + 4) for _ in range(60))] for _ in range(rows)]
    return Copies(texts, "aligned")


@pytest.mark.parametrize("texts", [rotten, None])
def test_whatever_is_evaluated_ahead(copier: Any, texts: Any) -> None:
    sample = make_batch(random_sources(29, 5, longest=20))
    task = make_task("beam")
    options = {"beam": 5, "max_len_b": 30}
    generator = task.build_generator([copier], generation_options(**options))
    generator.texts = texts or generator.texts
    generator.memory.budgets[generator.texts] = greedy_budget()
    found = task.inference_step(generator, [copier], sample)
    assert_same_nbest(found, stock([copier], sample, **options))


def test_a_beam_of_one_is_the_loop(copier: Any) -> None:
    sample = make_batch(random_sources(30, 5))
    task = make_task("beam")
    generator = task.build_generator([copier], generation_options(beam=1))
    assert not isinstance(generator, BeamGenerator)
    assert_same_nbest(task.inference_step(generator, [copier], sample), stock([copier], sample))


@pytest.mark.parametrize(
    "options",
    [{"beam": WORDS + 3}, {"beam": 1, "match_source_len": True, "unkpen": -1.0}],
    ids=["a beam of all words", "unknown words outgrow the source"],
)
def test_where_stock_has_ways_of_its_own(
    copier: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fairseq_aggdec"):
        generator = make_task("beam").build_generator([copier], generation_options(**options))
    assert type(generator) is SequenceGenerator
    assert "is left to stock fairseq: " in caplog.text
