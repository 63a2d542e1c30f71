"""Drafting in the compiled library: what the operators draft, and the vocabulary seen along few directions."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_aggdec.drafters.chain import FastChain
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.drafters.proposer import FEWEST_TYPES, Proposer, proposer
from fairseq_aggdec.drafters.trees import CANDIDATES
from fairseq_aggdec.engine.int8 import linear
from fairseq_aggdec.engine.linear import fast_kernels, some_outputs
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.models.slot_chain import SlotChain
from tests.reference.growing import GrownTree, TreeRequest, candidates, compiled_trees, grow
from tests.support import make_model, make_task

pytestmark = pytest.mark.skipif(not fast_kernels(), reason="no compiled products in fp32")

EOS = 2


@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    ("nodes", "fixed_cost", "trust"),
    [(1, math.inf, 1.0), (12, math.inf, 1.0), (64, 5.0, 1.0), (64, 5.0, 0.3)],
)
def test_compiled_trees_are_the_same(
    chained: bool, int8: bool, nodes: int, fixed_cost: float, trust: float
) -> None:
    task = make_task()
    for seed in range(4):
        sizes = {"decoder_embed_dim": 40, "encoder_embed_dim": 40}
        tied = {"share_decoder_input_output_embed": seed % 2 == 0}
        model = make_model(task, seed, "nar_drafter", slot_chain=chained, **sizes, **tied)
        decoder = model.decoder
        vocabulary = linear([decoder.output_projection], Precision(int8=int8))
        chain = FastChain(decoder, Precision(int8=int8)) if chained else None
        compiled = proposer(decoder, vocabulary, chain)
        assert compiled is not None
        features, last, room = 0.7 * torch.randn(3, 9, 40), [5, 6, 7], [12, 3, 0]
        logits = vocabulary(features.flatten(0, 1)).unflatten(0, (3, 9))
        if chain is not None:
            tokens, scores = chain.pairs(features, logits, torch.tensor(last))
        else:
            best = logits.topk(CANDIDATES)
            tokens = best.indices
            scores = best.values.unsqueeze(2).expand(-1, -1, CANDIDATES, -1)
        found = candidates(tokens, scores)
        trees = compiled_trees(
            compiled, features, TreeRequest(last, room, nodes, EOS, fixed_cost, trust=trust)
        )
        for row, tree in enumerate(trees):
            expected = grow(found, row, min(room[row], 9), nodes, EOS, fixed_cost, trust=trust)
            assert (tree.tokens, tree.parents) == (expected.tokens, expected.parents)
            assert tree.chances == pytest.approx(expected.chances, abs=1e-4)


@pytest.mark.parametrize("chained", [True, False])
def test_compiled_paths_are_those_that_the_operators_choose(chained: bool) -> None:
    for seed in range(6):
        model = make_model(make_task(), seed, "nar_drafter", slot_chain=chained)
        decoder = model.decoder
        vocabulary = linear([decoder.output_projection])
        chain = FastChain(decoder) if chained else None
        compiled = proposer(decoder, vocabulary, chain)
        assert compiled is not None
        features, last, room = torch.randn(3, 7, decoder.embed_dim), [5, 6, 7], [12, 3, 0]
        logits = vocabulary(features.flatten(0, 1)).unflatten(0, (3, 7))
        block = logits.argmax(-1)
        if chain is not None:
            block = chain.choose(features, logits, torch.tensor(last))
        asked = TreeRequest(last, room, features.size(1), EOS, math.inf, branches=False)
        found = [tree.tokens for tree in compiled_trees(compiled, features, asked)]
        for tokens, most, drafted in zip(block.tolist(), room, found, strict=True):
            until = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
            assert list(drafted) == tokens[: min(until, most)]


WIDTH = 16


def made(types: int, int8: bool = False) -> Proposer:
    """Of a decoder with random weights."""
    torch.manual_seed(1)
    decoder: Any = SimpleNamespace(output_projection=torch.nn.Linear(WIDTH, types))
    found = proposer(decoder, linear([decoder.output_projection], Precision(int8=int8)))
    assert found is not None
    return found


def trees_of(proposer: Proposer, features: torch.Tensor) -> list[GrownTree]:
    rows, slots, _ = features.shape
    asked = TreeRequest([5] * rows, [slots] * rows, 12, EOS, math.inf)
    return compiled_trees(proposer, features, asked)


@pytest.mark.parametrize("int8", [False, True])
def test_few_directions_tell_types_apart_where_features_vary_in_no_others(int8: bool) -> None:
    torch.manual_seed(2)
    basis = torch.randn(WIDTH // 4, WIDTH)
    learned = made(3000, int8)
    for _ in range(30):
        features = torch.randn(3, 7, WIDTH // 4) @ basis
        narrow = learned.narrow is not None
        found, expected = trees_of(learned, features), trees_of(made(3000), features)
        if narrow:
            assert [tree.tokens for tree in found] == [tree.tokens for tree in expected]
            for tree, other in zip(found, expected, strict=True):
                assert tree.chances == pytest.approx(other.chances, abs=1e-4)
    assert narrow, "nothing was learned"
    assert not learned.narrowing.due, "it is still learning"
    # Scores are those of the whole projection, in fp32, whatever the candidates were found in.
    products = learned.narrow
    assert products is not None
    assert (products[0].outputs, products[1].inputs) == (WIDTH // 4, WIDTH // 4)


def test_what_was_learned_is_learned_once_more() -> None:
    learned = made(FEWEST_TYPES)
    kept = []
    for _ in range(20):
        trees_of(learned, torch.randn(3, 9, WIDTH))
        if learned.narrow is not None and not any(learned.narrow is one for one in kept):
            kept.append(learned.narrow)
    assert len(kept) == 2


def test_small_vocabularies_and_broken_features_are_read_whole() -> None:
    small, broken = made(FEWEST_TYPES - 1), made(FEWEST_TYPES)
    for _ in range(20):
        features = torch.randn(3, 9, WIDTH)
        trees_of(small, features)
        trees_of(broken, features * torch.nan)
    assert small.narrow is None
    assert broken.narrow is None
    assert not broken.narrowing.rows, "it gathers features that it does not use"


@pytest.mark.parametrize("int8", [False, True])
def test_a_rehearsed_draft_looks_along_as_many_directions_as_a_later_one(int8: bool) -> None:
    learned, features = made(FEWEST_TYPES, int8), torch.randn(3, 9, WIDTH)
    before = trees_of(made(FEWEST_TYPES, int8), features)

    def sizes() -> list[tuple[int, int, int]]:
        struct = learned.struct
        return [
            (each.inputs, each.outputs, len(learned.narrow or ()))
            for each in (struct.directions, struct.narrow)
        ]

    nothing = sizes()
    with learned.rehearsing():
        rehearsed = sizes()
        assert len(trees_of(learned, features)) == len(features)
    assert sizes() == nothing
    assert trees_of(learned, features) == before
    for _ in range(20):
        trees_of(learned, torch.randn(3, 9, WIDTH))
    products = learned.narrow
    with learned.rehearsing():
        assert learned.narrow is products
    assert sizes() == rehearsed != nothing
    small = made(FEWEST_TYPES - 1)
    with small.rehearsing():
        assert small.narrow is None


def test_what_was_learned_is_forgotten() -> None:
    learned, features = made(FEWEST_TYPES), torch.randn(3, 9, WIDTH)
    before = trees_of(made(FEWEST_TYPES), features)
    for _ in range(20):
        trees_of(learned, torch.randn(3, 9, WIDTH))
    assert learned.narrow is not None
    learned.forget()
    assert learned.narrow is None
    assert trees_of(learned, features) == before
    model = make_model(make_task(), 1, "nar_drafter", block_size=4)
    drafter = NarDrafter(model)
    drafter.forget()  # nothing was made yet
    verifier: Any = None
    drafter.prepare(verifier)
    assert drafter.proposer is not None
    drafter.proposer.narrowing.seen = 5
    drafter.forget()
    assert drafter.proposer.narrowing.seen == 0


def test_numbers_that_are_none_are_no_candidates_after_learning_either() -> None:
    learned = made(FEWEST_TYPES)
    for _ in range(20):
        trees_of(learned, torch.randn(3, 9, WIDTH))
    features = torch.randn(3, 9, WIDTH)
    expected = trees_of(learned, features)
    features[1] = torch.nan
    found = trees_of(learned, features)
    assert (found[0], found[2]) == (expected[0], expected[2])
    assert all(0 <= token < FEWEST_TYPES for token in found[1].tokens)


@pytest.mark.parametrize("types", [2500, 0])
def test_narrow_vocabularies_with_a_chain_and_with_a_part_of_the_types(types: int) -> None:
    torch.manual_seed(3)
    decoder: Any = SimpleNamespace(output_projection=torch.nn.Linear(WIDTH, 3000))
    decoder.chain, decoder.embed_scale = SlotChain(WIDTH, WIDTH), 1.0
    decoder.embed_tokens = torch.nn.Embedding(3000, WIDTH)
    part = some_outputs(decoder.output_projection, slice(types or None))
    chain = FastChain(decoder)
    basis = torch.randn(WIDTH // 4, WIDTH)

    def new() -> Proposer:
        found = proposer(decoder, linear([part]), chain)
        assert found is not None
        return found

    learned = new()
    for _ in range(20):
        trees_of(learned, torch.randn(3, 7, WIDTH // 4) @ basis)
    assert learned.narrow is not None
    features = torch.randn(3, 7, WIDTH // 4) @ basis
    for tree, other in zip(trees_of(learned, features), trees_of(new(), features), strict=True):
        assert tree.tokens == other.tokens
        assert all(token < (types or 3000) for token in tree.tokens)
