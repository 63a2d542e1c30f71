"""Trees of drafted tokens: the likeliest nodes, against a search through all of them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.growing import candidates, grow

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
    found = candidates(tokens, scores)
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


@pytest.mark.parametrize("fixed_cost", [0.2, 1.0, 5.0, 20.0])
def test_nodes_are_taken_while_they_bring_more_than_they_cost(fixed_cost: float) -> None:
    torch.manual_seed(3)
    tokens = torch.stack([torch.randperm(9)[:4] + 3 for _ in range(5)]).view(1, 5, 4)
    scores = 2 * torch.randn(1, 5, 4, 4)
    scores[:, 0] = scores[:, 0, :1]
    found = candidates(tokens, scores)
    chances = [math.exp(chance) for chance in grow(found, 0, 5, 999, EOS).chances]
    rates = [(1 + sum(chances[:nodes])) / (fixed_cost + nodes) for nodes in range(len(chances) + 1)]
    taken = len(grow(found, 0, 5, 999, EOS, fixed_cost).tokens)
    assert rates[taken] == pytest.approx(max(rates[1:])) and taken < len(chances)
