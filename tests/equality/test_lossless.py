"""Every drafter gives what stock fairseq gives with beam 1: adversarial drafters, hard models, ragged batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft
from tests.support import (
    WORDS,
    assert_same,
    generate,
    make_batch,
    make_dictionary,
    make_model,
    make_task,
    random_sources,
    stock,
    trained_copier,
)

Propose = Callable[[int, int, list[int]], int]


class ScriptedDrafter(Drafter):
    """Drafts as long as there is room, each token by a rule of (sentence, output index, oracle output)."""

    def __init__(self, oracle: Sequence[Mapping[str, Any]], propose: Propose, longest: int = 7):
        self.oracle = [hypothesis["tokens"].tolist() for hypothesis in oracle]
        self.propose, self.longest = propose, longest

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.calls = 0

    def draft(self, state: DecodeState) -> Draft:
        self.calls += 1
        drafts = []
        for row in state.rows:
            length = min(self.longest, row.end - row.position)
            positions = range(row.position, row.position + length)
            drafts.append(
                [
                    self.propose(row.index, position, self.oracle[row.index])
                    for position in positions
                ]
            )
        return Draft(drafts)


def right(sentence: int, position: int, oracle: list[int]) -> int:
    return oracle[position] if position < len(oracle) else 4


def wrong(sentence: int, position: int, oracle: list[int]) -> int:
    return 4 + (right(sentence, position, oracle) - 3) % WORDS


def random_token(sentence: int, position: int, oracle: list[int]) -> int:
    return 4 + (sentence * 7919 + position * 104729) % WORDS


def mixed(sentence: int, position: int, oracle: list[int]) -> int:
    rule = right if (sentence + position) % 4 else wrong
    return rule(sentence, position, oracle)


def end(sentence: int, position: int, oracle: list[int]) -> int:
    return 2


def padding(sentence: int, position: int, oracle: list[int]) -> int:
    return 1


def unknown(sentence: int, position: int, oracle: list[int]) -> int:
    return 3


DRAFTERS = [right, wrong, random_token, mixed, end, padding, unknown]


@pytest.fixture(scope="module")
def copier() -> Any:
    """A model that copies with edits."""
    return trained_copier()[1]


@pytest.mark.parametrize("propose", DRAFTERS)
@pytest.mark.parametrize("count", [1, 9])
def test_adversarial_drafters(copier: Any, propose: Propose, count: int) -> None:
    sample = make_batch(random_sources(11, count))
    expected = stock([copier], sample)

    def prepare(generator: Any) -> None:
        generator.drafter = ScriptedDrafter(expected, propose)

    found = generate(make_task("greedy"), [copier], sample, prepare=prepare)
    assert_same(found, expected)
    tokens = [len(hypothesis["tokens"]) for hypothesis in expected]
    if propose is right:  # every iteration gains the draft and one token more
        assert [h["steps"] for h in found] == [-(-length // 8) for length in tokens]
    if propose is wrong:
        assert [h["steps"] for h in found] == tokens


@pytest.mark.parametrize("decoding", ["greedy", "iad"])
@pytest.mark.parametrize("left_pad", [True, False])
def test_copier(copier: Any, decoding: str, left_pad: bool) -> None:
    sample = make_batch(random_sources(12, 24, longest=25), left_pad)
    assert_same(
        generate(make_task(decoding), [copier], sample, max_len_b=40),
        stock([copier], sample, max_len_b=40),
    )


@pytest.mark.parametrize("match", ["unique", "longest", "recent"])
def test_repetitive_sources(copier: Any, match: str) -> None:
    sources = [[5, 6] * 8, [5] * 12, [5, 6, 7, 5, 6, 8, 5, 6, 9], [5], [5, 2, 6, 1, 7], [3, 3, 3]]
    sample = make_batch(sources)
    task = make_task("iad", iad_match=match)
    assert_same(generate(task, [copier], sample), stock([copier], sample))


def test_a_limit_of_drafts_changes_the_number_of_calls_only(copier: Any) -> None:
    sample = make_batch(random_sources(12, 24))
    expected, accepted = stock([copier], sample), {}
    for limit in ("1", "3", "all"):
        task = make_task("iad", draft_tokens=limit)
        assert_same(generate(task, [copier], sample), expected)
        accepted[limit] = task.counters.mean_accepted_tokens
    assert 1 < accepted["1"] <= 2
    assert accepted["1"] < accepted["3"] < accepted["all"]


def _bias_output(model: Any, token: int, weight: float) -> None:
    """Pushes a token up at every position, by a constant feature that the last norm provides."""
    with torch.no_grad():
        norm = model.decoder.layers[-1].final_layer_norm
        norm.weight[0], norm.bias[0] = 0.0, 1.0
        model.decoder.output_projection.weight[:, 0] = 0.0
        model.decoder.output_projection.weight[token, 0] = weight


@pytest.mark.parametrize("weight", [2.0, 4.0, 6.0, 30.0])
def test_models_that_drop_the_tail(weight: float) -> None:
    """``</s>`` may come at any bifurcation, with source left to copy: nothing may follow it."""
    model = trained_copier(updates=200, share_all_embeddings=False)[1]
    _bias_output(model, 2, weight)
    sample = make_batch(random_sources(13, 16))
    expected = stock([model], sample)
    assert_same(generate(make_task("iad"), [model], sample), expected)
    assert all(h["tokens"].tolist().count(2) == 1 for h in expected)


def test_dictionaries_that_differ() -> None:
    """Drafts go by symbol: the target has the source's words in another order, and lacks some."""
    words = [f"w{i}" for i in range(WORDS)]
    source, target = make_dictionary(words), make_dictionary(["new", *reversed(words[:-6])])
    task = make_task("iad", source, target)
    model = make_model(task, 3)
    sample = make_batch(random_sources(16, 8))
    assert_same(generate(task, [model], sample), stock([model], sample))


def test_without_packed_weights(copier: Any) -> None:
    sample = make_batch(random_sources(17, 8))
    task = make_task("iad", low_memory=True)
    assert_same(generate(task, [copier], sample), stock([copier], sample))


def test_drafting_stops_where_nothing_is_copied(copier: Any) -> None:
    """The output stays stock's, through batches that rest and batches that try again; the summary says so."""
    task = make_task("iad")
    generator = task.build_generator([copier], _options())
    generator.drafter.to_target = generator.drafter.to_target.roll(7)  # no draft stands
    for batch in range(120):
        sample = make_batch(random_sources(500 + batch, 3))
        found = [row[0] for row in task.inference_step(generator, [copier], sample)]
        assert_same(found, stock([copier], sample))
    assert 100 < task.counters.undrafted < 360
    assert "decoded without drafts, as by --decoding greedy" in task.counters.summary()


def _options() -> Any:
    from tests.support import generation_options

    return generation_options()
