"""Trees of a lattice: its likeliest candidates, and where in it an output stands, against slow plain references."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.drafters.lattice_tree import DISTANCE, NEAR, NONE, LatticeTable
from fairseq_aggdec.drafters.trees import CANDIDATES

ROWS, POSITIONS, COUNT = 3, 5, 11


class Plain:
    """A lattice that allows everything."""

    def __init__(self) -> None:
        self.pad, self.lengths = 1, SimpleNamespace(longest=torch.tensor([3, 4, 4]))
        self.tokens = 2 + torch.stack(
            [torch.randperm(90)[:COUNT] for _ in range(ROWS * POSITIONS)]
        ).view(ROWS, POSITIONS, COUNT)

    def scores(self, first: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        unary = torch.zeros(ROWS, POSITIONS, COUNT)
        unary[:, 0] = first
        return unary, edges


@pytest.fixture
def made() -> tuple[Any, Tensor, Tensor, LatticeTable]:
    torch.manual_seed(2)
    lattice: Any = Plain()
    first = (2 * torch.randn(ROWS, COUNT)).log_softmax(-1)
    edges = (2 * torch.randn(ROWS, POSITIONS - 1, COUNT, COUNT)).log_softmax(-1)
    return lattice, first, edges, LatticeTable(lattice, first, edges)


def marginal(first: Tensor, edges: Tensor, row: int, position: int, last: int) -> float:
    """The chance of a candidate: the sum over all paths that end with it."""
    total = 0.0
    for path in itertools.product(range(COUNT), repeat=position):
        chance, before = 0.0, None
        for place, candidate in enumerate((*path, last)):
            step = first[row] if before is None else edges[row, place - 1, before]
            chance += float(step[candidate])
            before = candidate
        total += math.exp(chance)
    return total


def test_the_likeliest_candidates_and_what_follows_what(
    made: tuple[Any, Tensor, Tensor, LatticeTable],
) -> None:
    lattice, first, edges, table = made
    for row, position in ((0, 0), (1, 1), (2, 2)):
        chances = [marginal(first, edges, row, position, last) for last in range(COUNT)]
        best = sorted(range(COUNT), key=lambda last: -chances[last])[:CANDIDATES]
        assert table.host_tokens[row][position] == lattice.tokens[row, position, best].tolist()
        found = [math.exp(own) for own in table.host_own[row][position]]
        assert found == pytest.approx([chances[last] for last in best], rel=1e-4)
    chosen = [
        {token: lattice.tokens[1, position].tolist().index(token) for token in tokens}
        for position, tokens in enumerate(table.host_tokens[1])
    ]
    for position in range(1, POSITIONS):
        for i, before in enumerate(chosen[position - 1].values()):
            for j, behind in enumerate(chosen[position].values()):
                own = float(edges[1, position - 1, before, behind])
                assert float(table.pairs[1, position, i, j]) == pytest.approx(max(own, NONE))


def test_slots_are_the_positions_from_where_a_row_stands(
    made: tuple[Any, Tensor, Tensor, LatticeTable],
) -> None:
    table = made[-1]
    tokens, scores = table.slots([0, 2, 4], [None, 3, None], 2)
    assert torch.equal(tokens[0], table.tokens[0, :2])
    assert torch.equal(tokens[1], table.tokens[1, 2:4])
    assert torch.equal(tokens[2, 0], table.tokens[2, 4])
    count = tokens.size(2)
    assert torch.equal(scores[0, 0], table.own[0, 0].expand(count, -1))
    assert torch.equal(scores[1, 0], table.pairs[1, 2, 3].expand(count, -1))
    assert torch.equal(scores[2, 0], table.own[2, 4].expand(count, -1))
    assert torch.equal(scores[1, 1], table.pairs[1, 3])


def test_a_word_is_looked_for_near_by(made: tuple[Any, Tensor, Tensor, LatticeTable]) -> None:
    table = made[-1]
    token = table.host_tokens[0][3][1]
    for position in range(POSITIONS):
        near = abs(position - 3) <= NEAR
        assert table.find(0, position, token) == ((3, 1) if near else (position, None))
    assert table.find(0, 9, 7777) == (9, None)
    # Of two places the likelier one, the distance counted.
    table.host_tokens[0][2][0], table.host_own[0][2][0] = token, 0.0
    table.host_own[0][3][1] = DISTANCE / 2
    assert table.find(0, 2, token) == (2, 0)
    assert table.find(0, 3, token) == (3, 1)


def test_padding_is_no_candidate() -> None:
    torch.manual_seed(2)
    lattice: Any = Plain()
    lattice.tokens[:, 2:, 0] = lattice.pad
    first = torch.randn(ROWS, COUNT).log_softmax(-1)
    edges = torch.randn(ROWS, POSITIONS - 1, COUNT, COUNT)
    edges[..., 0] = 5.0  # where it may stand it is the likeliest
    table = LatticeTable(lattice, first, edges.log_softmax(-1))
    assert lattice.pad not in {token for row in table.host_tokens for slot in row for token in slot}
    assert table.ends == [3, 4, 4]


def test_rows_that_stay(made: tuple[Any, Tensor, Tensor, LatticeTable]) -> None:
    table = made[-1]
    tokens, pairs, own = table.tokens.clone(), table.pairs.clone(), table.host_own
    table.keep_rows([2, 0])
    assert torch.equal(table.tokens, tokens[[2, 0]]) and torch.equal(table.pairs, pairs[[2, 0]])
    assert table.host_tokens == tokens[[2, 0]].tolist() and table.host_own == [own[2], own[0]]
    assert table.ends == [4, 3]
