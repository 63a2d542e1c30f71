"""Trees of drafted tokens: the likeliest nodes, against a search through all of them."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.budget.account import Account, NodeBudget
from fairseq_aggdec.budget.calibration import Calibration, Scale
from fairseq_aggdec.budget.call_cost import CallCost
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.drafters.trees import (
    LEARNED_FROM,
    ONE_OF,
    Grown,
    TreeGrower,
    candidates,
    grow,
)
from fairseq_aggdec.search.acceptance import exact
from fairseq_aggdec.search.judge import Question
from fairseq_aggdec.search.judge.tensors import best_path, judge
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Draft, Verdict
from tests.equality.test_gad import drafter as small_drafter

EOS = 2


def paths(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    """The path to every node."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*found[parent], token))
    return found[1:]


@given(
    seed=st.integers(0, 99),
    slots=st.integers(0, 3),
    nodes=st.integers(1, 40),
    most=st.integers(1, 3),
)
def test_the_likeliest_paths_are_taken(seed: int, slots: int, nodes: int, most: int) -> None:
    torch.manual_seed(seed)
    tokens = torch.stack([torch.randperm(5)[:most] for _ in range(6)]).view(2, 3, most)
    scores = torch.randn(2, 3, most, most)
    scores[:, 0] = scores[:, 0, :1]
    found = candidates(tokens, scores, Calibration())
    chances = scores.log_softmax(-1)
    for row in range(2):
        every: dict[tuple[int, ...], float] = {}
        for length in range(1, slots + 1):
            for places in itertools.product(range(most), repeat=length):
                path = tuple(int(tokens[row, slot, place]) for slot, place in enumerate(places))
                if EOS in path[:-1]:
                    continue
                before = (0, *places)
                every[path] = sum(
                    float(chances[row, slot, before[slot], place])
                    for slot, place in enumerate(places)
                )
        tree = grow(found, row, slots, nodes, EOS)
        taken = paths(tree.tokens, tree.parents)
        assert len(taken) == len(set(taken)) == min(nodes, len(every))
        assert all(parent < node for node, parent in enumerate(tree.parents, 1))
        best = sorted(every.values(), reverse=True)[:nodes]
        torch.testing.assert_close(
            torch.tensor([every[path] for path in taken]), torch.tensor(best)
        )
        torch.testing.assert_close(torch.tensor(tree.chances), torch.tensor(best))


@pytest.mark.parametrize(
    ("parents", "stands", "choices", "path"),
    [
        # 1 and 2 follow the root, 3 and 4 follow 2; tokens are 10 + node
        ([0, 0, 2, 2], [0, 0, 0, 0, 0], [99, 99, 99, 99, 99], [0]),
        ([0, 0, 2, 2], [0, 1, 0, 1, 1], [11, 99, 99, 99, 99], [0, 1]),  # 3 stands on nothing
        ([0, 0, 2, 2], [0, 1, 1, 0, 1], [11, 99, 99, 99, 99], [0, 1]),  # the verifier's own
        ([0, 0, 2, 2], [0, 1, 1, 0, 1], [99, 99, 99, 99, 99], [0, 2, 4]),  # else the longest
        ([0, 0, 2, 2], [0, 1, 1, 1, 1], [99, 99, 99, 99, 99], [0, 2, 3]),  # else the likeliest
        ([0, 1, 2, 3], [0, 1, 1, 0, 1], [11, 12, 99, 14, 99], [0, 1, 2]),
    ],
)
def test_which_path_stands(
    parents: list[int], stands: list[int], choices: list[int], path: list[int]
) -> None:
    tokens = [10 + node for node in range(5)]
    assert best_path(parents, stands, tokens, choices) == path


@pytest.mark.parametrize("branches", [True, False])
def test_nodes_that_stand_include_a_drafted_end(branches: bool) -> None:
    """Nothing is emitted at it, but it stands."""
    tokens, parents = [[7, 8, EOS], [9, 5]], [[0, 0, 2] if branches else [0, 1, 2], [0, 1]]
    draft = Draft(tokens, parents)
    rows = [Row(0, [4], end=99, floor=0), Row(1, [4] * 4, end=99, floor=0)]
    state = DecodeState(rows, EOS, torch.device("cpu"))
    choices = torch.tensor([8 if branches else 7, 8, EOS, 6, 9, 7, 6])
    logits = torch.nn.functional.one_hot(choices, 12).float()
    found = judge(logits, Question(draft, state.window(draft), state), Rules(0, 1, EOS), exact)
    assert found.emitted == [[8, EOS] if branches else [7, 8, EOS], [9, 7]]
    assert found.nodes() == [[0, 2, 3] if branches else [0, 1, 2, 3], [0, 1]]
    assert [len(nodes) - 1 for nodes in found.nodes()] == found.accepted


@pytest.mark.parametrize("fixed_cost", [0.2, 2.0, 20.0, math.inf])
def test_a_path_that_does_not_branch_ends_by_the_same_rule(fixed_cost: float) -> None:
    torch.manual_seed(3)
    tokens = torch.stack([torch.randperm(9)[:4] + 3 for _ in range(5)]).view(1, 5, 4)
    scores = 2 * torch.randn(1, 5, 4, 4)
    scores[:, 0] = scores[:, 0, :1]
    found = candidates(tokens, scores, Calibration())
    whole = grow(found, 0, 5, 999, EOS, branches=False)
    path = grow(found, 0, 5, 999, EOS, fixed_cost, branches=False)
    place, expected = 0, []
    for slot in range(5):  # of each slot the likeliest behind the one before
        place = found.order[0][slot][place][0]
        expected.append(found.tokens[0][slot][place])
    assert whole.tokens == expected and whole.parents == [0, 1, 2, 3, 4]
    count = len(path.tokens)
    assert path.tokens == whole.tokens[:count]
    chances = [math.exp(chance) for chance in whole.chances]
    rates = [(1 + sum(chances[:nodes])) / (fixed_cost + nodes) for nodes in range(1, 6)]
    assert count == (5 if fixed_cost == math.inf else 1 + rates.index(max(rates)))


@pytest.mark.parametrize("fixed_cost", [0.2, 1.0, 5.0, 20.0])
def test_nodes_are_taken_while_they_bring_more_than_they_cost(fixed_cost: float) -> None:
    torch.manual_seed(3)
    tokens = torch.stack([torch.randperm(9)[:4] + 3 for _ in range(5)]).view(1, 5, 4)
    scores = 2 * torch.randn(1, 5, 4, 4)
    scores[:, 0] = scores[:, 0, :1]
    found = candidates(tokens, scores, Calibration())
    chances = [math.exp(chance) for chance in grow(found, 0, 5, 999, EOS).chances]
    rates = [(1 + sum(chances[:nodes])) / (fixed_cost + nodes) for nodes in range(len(chances) + 1)]
    taken = len(grow(found, 0, 5, 999, EOS, fixed_cost).tokens)
    assert rates[taken] == pytest.approx(max(rates[1:])) and taken < len(chances)


def test_what_a_tree_costs_counts_where_its_size_is_learned() -> None:
    cost = CallCost()
    assert TreeGrower(NodeBudget(9, learned=True), cost)._fixed_cost(2, "kernels") == 4.5
    assert TreeGrower(NodeBudget(9), cost)._fixed_cost(2, "kernels") == math.inf


FITS = [(1.0, 0.0), (0.5, -0.5), (1.6, 0.7)]


def test_calibration_finds_what_the_probabilities_of_each_slot_are_worth() -> None:
    luck, found = random.Random(2), Calibration()
    for _ in range(6000):
        logits = torch.tensor([luck.gauss(0.5, 2.0) for _ in FITS])
        said = found.chances(logits.sigmoid().log().view(1, -1, 1, 1)).flatten().tolist()
        outcomes = []
        for slot, (slope, shift) in enumerate(FITS):
            chance = 1 / (1 + math.exp(-(slope * float(logits[slot]) + shift)))
            outcomes.append((slot, said[slot], luck.random() < chance))
        found.observe(outcomes)
    for scale, (slope, shift) in zip(found.scales, FITS, strict=True):
        assert scale.slope == pytest.approx(slope, abs=0.15)
        assert scale.shift == pytest.approx(shift, abs=0.15)


def test_a_slot_that_was_never_reached_is_like_the_one_before() -> None:
    luck, found = random.Random(2), Calibration()
    for _ in range(2000):
        logit = luck.gauss(0.0, 2.0)
        said = found.chances(torch.tensor([logit, 0.0]).sigmoid().log().view(1, 2, 1, 1))
        stood = luck.random() < 1 / (1 + math.exp(1.0 - logit))
        found.observe([(0, float(said[0, 0]), stood)])
    assert found.scales[1].shift == pytest.approx(found.scales[0].shift, abs=0.01)
    assert found.scales[1].shift < -0.7


def test_calibrated_chances_keep_their_order_and_their_range() -> None:
    calibration = Calibration()
    log_probs = torch.tensor([-1e30, -90.0, -3.0, -0.5, -1e-9, 0.0]).view(1, 1, 1, 6)
    for slope, shift in FITS:
        calibration.scales, calibration.table = [Scale(slope, shift)], None
        chances = calibration.chances(log_probs).flatten()
        assert chances.isfinite().all() and (chances <= 0).all()
        assert (chances.diff() >= 0).all()


@pytest.mark.parametrize("kind", ["heads", "model"])
def test_what_drafters_learned_is_forgotten(kind: str) -> None:
    """With relaxed acceptance a shard of bulk work would else depend on those before it."""
    nodes = NodeBudget(8)
    heads = BlockwiseHeadsDrafter(Account(3), nodes=nodes)
    drafter = heads if kind == "heads" else NarDrafter(small_drafter(), nodes=nodes)
    assert drafter.trees is not None
    log_probs = torch.randn(1, 3, 4, 4).log_softmax(-1)
    before = drafter.trees.calibration.chances(log_probs)
    drafter.trees.calibration.observe([(slot, -0.1, False) for slot in range(3)] * 200)
    assert not torch.allclose(drafter.trees.calibration.chances(log_probs), before)
    drafter.forget()
    assert torch.equal(drafter.trees.calibration.chances(log_probs), before)


def test_slots_that_trees_do_not_reach_are_not_filled() -> None:
    learned, fixed = (
        TreeGrower(NodeBudget(9, learned=True), CallCost()),
        TreeGrower(NodeBudget(9), CallCost()),
    )
    assert learned.slots(10) == fixed.slots(10) == 9  # a tree of nine; more is not known yet
    for grower in (learned, fixed):
        grower._drafted([Grown([5, 6, 7], [0, 1, 1], [0.0, 0.0, 0.0]), Grown([5], [0], [0.0])])
        for _ in range(600):
            grower._drafted([Grown([5, 6, 7], [0, 1, 1], [0.0, 0.0, 0.0])])
    assert (learned.slots(10), learned.slots(2), fixed.slots(10)) == (3, 2, 9)
    learned._drafted([Grown([5] * 5, [0, 1, 2, 3, 4], [0.0] * 5)])
    assert learned.slots(10) == 6


def test_in_the_end_one_of_four_drafts_teaches() -> None:
    grower, told = TreeGrower(NodeBudget(1), CallCost()), 0

    def observe(outcomes: Any) -> None:
        nonlocal told
        told += len(list(outcomes))

    with mock.patch.object(grower.calibration, "observe", observe):
        for _ in range(LEARNED_FROM + 40):
            grower.trees = [Grown([5], [0], [-0.1])]
            window: Any = SimpleNamespace(widths=[2])
            grower.observe(Verdict(window, [1], [1], [[5, 6]]))
    assert told == LEARNED_FROM + 40 / ONE_OF
