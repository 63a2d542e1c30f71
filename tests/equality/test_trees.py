"""Drafts that branch: the verifier's greedy output, whatever stands in the tree and whichever of its paths stands."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Draft, Verdict
from tests.support import (
    assert_same,
    generate,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

EOS = 2
TYPES = len(make_task().target_dictionary)


class Gardener(Drafter):
    """Drafts trees with the right path among others, up to where luck ends it, as the last of all.

    Args:
        outputs: of each sentence of the batch.
        chance: that the right path goes on.
        nodes: of a tree beside the right path.
        seed: of all that is random.
    """

    def __init__(self, outputs: Sequence[Sequence[int]], chance: float, nodes: int, seed: int):
        self.outputs, self.chance, self.nodes = outputs, chance, nodes
        self.random = random.Random(seed)
        self.standing: list[int] = []

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        pass

    def draft(self, state: DecodeState) -> Draft:
        trees = [self._tree(row) for row in state.rows]
        return Draft([tokens for tokens, _ in trees], [parents for _, parents in trees])

    def _tree(self, row: Row) -> tuple[list[int], list[int]]:
        most = min(self.random.randint(0, 6), row.end - row.position)
        tokens: list[int] = []
        parents: list[int] = []
        depths = [0]

        def grow(token: int, parent: int) -> int:
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
            return len(tokens)

        def rubbish() -> None:
            places = [node for node, depth in enumerate(depths) if depth < most]
            grow(
                self.random.choice([EOS, self.random.randrange(TYPES)]), self.random.choice(places)
            )

        end = 0
        for token in self.outputs[row.index][row.position : row.position + most]:
            for _ in range(self.random.randint(0, self.nodes)):
                rubbish()
            if self.random.random() > self.chance:
                break
            if self.random.random() < 0.2:
                grow(token, end)  # a duplicate, behind which nothing stands
            end = grow(token, end)
        return tokens, parents

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        self.standing += verdict.accepted


def grown(
    models: list[Any],
    sample: dict[str, Any],
    drafter: Any,
    prefix: Tensor | None = None,
    chosen: dict[str, Any] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """What the loop makes of a drafter."""
    task = make_task("iad", **(chosen or {}))
    with mock.patch.object(task, "build_drafter", return_value=drafter):
        return generate(task, models, sample, prefix, **options)


def outputs_of(expected: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [hypothesis["tokens"].tolist() for hypothesis in expected]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 3),
    rows=st.integers(1, 9),
    members=st.integers(1, 2),
    chance=st.sampled_from([0.5, 0.9, 1.0]),
    nodes=st.integers(0, 4),
    learned=st.booleans(),
    options=st.fixed_dictionaries(
        {"max_len_b": st.integers(4, 20)},
        optional={
            "max_len_a": st.sampled_from([0.5, 1.2]),
            "min_len": st.integers(1, 4),
            "unkpen": st.floats(-2, 3),
            "lenpen": st.floats(0, 2),
            "unnormalized": st.booleans(),
            "temperature": st.floats(0.5, 3),
        },
    ),
)
def test_any_tree_gives_the_verifiers_output(
    seed: int,
    rows: int,
    members: int,
    chance: float,
    nodes: int,
    learned: bool,
    options: dict[str, Any],
) -> None:
    verifiers = [
        make_model(make_task(), number, decoder_learned_pos=learned) for number in (5, 6)[:members]
    ]
    sample = make_batch(random_sources(seed, rows))
    expected = stock(verifiers, sample, **options)
    gardener = Gardener(outputs_of(expected), chance, nodes, seed)
    assert_same(grown(verifiers, sample, gardener, **options), expected)


def test_what_stands_saves_iterations() -> None:
    verifier, sample = make_model(make_task(), 5), make_batch(random_sources(2, 4))
    expected = stock([verifier], sample)
    gardener = Gardener(outputs_of(expected), 1.0, 3, 1)
    found = grown([verifier], sample, gardener)
    assert sum(gardener.standing) > 0
    tokens = sum(len(hypothesis["tokens"]) for hypothesis in found)
    assert sum(h["steps"] for h in found) == tokens - sum(gardener.standing)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layernorm_embedding": True},
        {"decoder_normalize_before": True, "activation_fn": "gelu"},
        {"decoder_learned_pos": True, "no_scale_embedding": True},
        {"decoder_output_dim": 24, "activation_fn": "tanh"},
    ],
    ids=str,
)
def test_products_in_8_bits(options: dict[str, Any]) -> None:
    """Bit for bit, whatever stands beside a path."""
    verifier, sample = make_model(make_task(), 5, **options), make_batch(random_sources(4, 5))
    expected = generate(make_task("greedy", int8=True), [verifier], sample)
    for seed in range(3):
        gardener = Gardener(outputs_of(expected), 0.9, 3, seed)
        found = grown([verifier], sample, gardener, chosen={"int8": True})
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours["tokens"], theirs["tokens"])
            assert torch.equal(ours["positional_scores"], theirs["positional_scores"])
        assert sum(gardener.standing) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_half_precision(dtype: torch.dtype) -> None:
    verifier = make_model(make_task(), 5).to(dtype)
    sample = make_batch(random_sources(4, 5))
    expected = stock([verifier], sample)
    found = grown([verifier], sample, Gardener(outputs_of(expected), 0.9, 3, 1))
    alike = [
        ours["tokens"].tolist() == theirs["tokens"].tolist()
        for ours, theirs in zip(found, expected, strict=True)
    ]
    assert (
        sum(alike) >= 4
    )  # a token that hardly beats another may lose in a window of another width


def test_a_decoder_that_recomputes_its_prefix_is_shown_one_path() -> None:
    verifier, sample = make_model(make_task(), 5), make_batch(random_sources(4, 4))
    expected = stock([verifier], sample)
    gardener = Gardener(outputs_of(expected), 1.0, 3, 1)
    with mock.patch.object(Verifier, "reads_trees", False):
        assert_same(grown([verifier], sample, gardener), expected)


def test_relaxed_acceptance_keeps_to_the_options() -> None:
    verifier, sample = make_model(make_task(), 5), make_batch(random_sources(4, 5))
    outputs = outputs_of(stock([verifier], sample))
    for least in (1, 3):
        gardener = Gardener(outputs, 0.3, 4, 1)
        found = grown(
            [verifier],
            sample,
            gardener,
            chosen={"acceptance": f"top-beta:30:100,min:{least}"},
            min_len=5,
            no_repeat_ngram_size=2,
        )
        for row, hypothesis in enumerate(found):
            tokens = hypothesis["tokens"].tolist()
            assert tokens.index(EOS) == len(tokens) - 1 >= 5 and 1 not in tokens
            pairs = list(itertools.pairwise(tokens))
            assert len(set(pairs)) == len(pairs)
            scored = scores_of(verifier, sample, row, tokens)
            torch.testing.assert_close(
                hypothesis["positional_scores"], scored, atol=1e-4, rtol=1e-4
            )
    gardener = Gardener(outputs, 0.8, 4, 1)
    chosen = {"acceptance": "top-beta:1:100"}
    assert outputs_of(grown([verifier], sample, gardener, chosen=chosen)) == outputs


def scores_of(model: Any, sample: dict[str, Any], row: int, tokens: list[int]) -> Tensor:
    """Log-probabilities of a text by the whole model at once."""
    net_input = {name: value[row : row + 1] for name, value in sample["net_input"].items()}
    previous = torch.tensor([[EOS, *tokens[:-1]]])
    with torch.no_grad():
        logits = model(**net_input, prev_output_tokens=previous)[0][0]
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)


def test_history_shows_the_likeliest_path() -> None:
    draft = Draft([[5, 6, 7, 8]], [[0, 0, 1, 2]])
    assert draft.branches
    verifier, sample = make_model(make_task(), 5), make_batch([[5, 6, 7]])

    class Once(Gardener):
        def draft(self, state: DecodeState) -> Draft:
            return draft if state.rows[0].position == 0 else Draft([[]])

    found = grown([verifier], sample, Once([], 1.0, 0, 1), retain_iter_history=True)
    assert_same(found, stock([verifier], sample))
    assert found[0]["history"][0]["tokens"].tolist() == [5, 7]
