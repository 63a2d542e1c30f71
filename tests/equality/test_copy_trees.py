"""Copies that branch: the verifier's greedy output, whatever was learned from the sentences before."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_aggdec.engine.verifier import Verifier
from tests.support import (
    assert_same,
    edited,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
    trained_copier,
)

NODES = ["1", "6", "64", "auto"]


@pytest.fixture(scope="module")
def copier() -> Any:
    """A model that copies with edits."""
    return trained_copier()[1]


def decode(task: Any, models: list[Any], seeds: range, rows: int, **options: Any) -> int:
    """Batches by one generator, each as stock fairseq writes it; how many iterations they took."""
    generator = task.build_generator(models, generation_options(**options))
    steps = 0
    for seed in seeds:
        sample = make_batch(random_sources(seed, rows))
        found = [best for best, *_ in task.inference_step(generator, models, sample)]
        assert_same(found, stock(models, sample, **options))
        steps += sum(hypothesis["steps"] for hypothesis in found)
    return steps


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("match", ["aligned", "unique", "longest", "recent"])
def test_what_is_learned_changes_no_output(copier: Any, match: str, rows: int, nodes: str) -> None:
    task = make_task("iad", iad_match=match, draft_nodes=nodes)
    decode(task, [copier], range(3), rows, max_len_b=30)
    assert task.counters.drafted > 0


def test_what_was_replaced_before_takes_no_iteration_of_its_own(copier: Any) -> None:
    """The model's edits are always the same: it replaces some words."""
    assert any(edited(source) != source for source in random_sources(5, 9))
    plain = decode(make_task("iad", iad_draft_length="all"), [copier], range(12), 9)
    task = make_task("iad", iad_draft_length="all", draft_nodes="64")
    assert decode(task, [copier], range(12), 9) < 0.8 * plain


@settings(max_examples=25)
@given(
    seed=st.integers(0, 20),
    rows=st.integers(1, 7),
    members=st.integers(1, 2),
    nodes=st.sampled_from(NODES),
    length=st.sampled_from(["auto", "all", "3"]),
    options=st.fixed_dictionaries(
        {"max_len_b": st.integers(2, 20)},
        optional={
            "max_len_a": st.sampled_from([0.5, 1.2]),
            "min_len": st.integers(1, 2),
            "unkpen": st.floats(0, 3),
            "lenpen": st.floats(0, 2),
            "unnormalized": st.booleans(),
            "temperature": st.floats(0.5, 3),
            "match_source_len": st.booleans(),
        },
    ),
)
def test_options_together(
    seed: int, rows: int, members: int, nodes: str, length: str, options: dict[str, Any]
) -> None:
    models = [make_model(make_task(), number) for number in (5, 6)[:members]]
    task = make_task("iad", draft_nodes=nodes, iad_draft_length=length)
    decode(task, models, range(seed, seed + 2), rows, **options)


def test_in_8_bits_it_is_greedy_decoding_in_8_bits(copier: Any) -> None:
    greedy, trees = make_task("greedy", int8=True), make_task("iad", int8=True, draft_nodes="64")
    generators = [task.build_generator([copier], generation_options()) for task in (greedy, trees)]
    for seed in range(4):
        sample = make_batch(random_sources(seed, 5))
        expected, found = (generator.generate([copier], sample) for generator in generators)
        for (ours, *_), (theirs, *_) in zip(found, expected, strict=True):
            assert torch.equal(ours["tokens"], theirs["tokens"])
            assert torch.equal(ours["positional_scores"], theirs["positional_scores"])


def test_forced_words_and_a_decoder_that_is_shown_one_path(copier: Any) -> None:
    sample, task = make_batch(random_sources(3, 3)), make_task("iad", draft_nodes="64")
    prefix = torch.tensor([[5, 6, 7], [9, 1, 1], [4, 4, 1]])
    generator = task.build_generator([copier], generation_options())
    for reads_trees in (True, False, True):
        for forced in (None, prefix):
            with mock.patch.object(Verifier, "reads_trees", reads_trees):
                found = generator.generate([copier], sample, prefix_tokens=forced)
            assert_same([best for best, *_ in found], stock([copier], sample, forced))


def test_what_was_learned_can_be_forgotten(copier: Any) -> None:
    task = make_task("iad", draft_nodes="64")
    generator = task.build_generator([copier], generation_options())
    generator.generate([copier], make_batch(random_sources(3, 9)))
    assert generator.drafter.trees.edits.known
    generator.forget()
    assert not generator.drafter.trees.edits.known and generator.drafter.trees.budget.most == 64


def test_repeated_ngrams_and_windows_of_one_width(copier: Any) -> None:
    """Of the former the oracle is our own loop without drafts; of the latter no window has a tree."""
    ngrams = {"no_repeat_ngram_size": 2}
    plain = make_task("greedy").build_generator([copier], generation_options(**ngrams))
    trees = make_task("iad", draft_nodes="64")
    generator = trees.build_generator([copier], generation_options(**ngrams))
    for seed in range(4):
        sample = make_batch(random_sources(seed, 5))
        found, expected = (one.generate([copier], sample) for one in (generator, plain))
        assert_same([best for best, *_ in found], [best for best, *_ in expected])
    decode(make_task("iad", draft_nodes="64", strict=8), [copier], range(3), 5)


@pytest.mark.parametrize("least", [1, 3])
def test_relaxed_acceptance_keeps_the_limits(copier: Any, least: int) -> None:
    relaxed = {"acceptance": "top-beta", "top_beta": 3, "tolerance": 5.0, "min_block_size": least}
    task = make_task("iad", draft_nodes="64", **relaxed)
    generator = task.build_generator([copier], generation_options(max_len_b=9, min_len=3))
    for seed in range(4):
        for best, *_ in generator.generate([copier], make_batch(random_sources(seed, 5))):
            assert 4 <= len(best["tokens"]) <= 10 and best["tokens"][-1] == 2
    assert task.counters.mean_accepted_tokens > 1


def test_a_block_size_is_none_of_copies(copier: Any) -> None:
    task = make_task("iad", block_size="auto")
    assert task.build_generator([copier], generation_options()).drafter.trees is None


def test_beam_1_reads_the_size_of_a_tree(copier: Any) -> None:
    for options in ({"draft_tree": "9"}, {"draft_nodes": "9"}):
        task = make_task("beam", **options)
        assert task.build_generator([copier], generation_options()).drafter.trees is not None
