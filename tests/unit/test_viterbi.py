"""Viterbi search: the best and the n best against a plain walk over all paths, and ties."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.lattice.viterbi import BestPaths, n_best, viterbi

Nats = list[list[float]]
TIES = [
    0.0,
    0.0,
    0.5,
    -1.0,
    -math.inf,
]  # few values, exact in binary: most lattices have several best paths


def all_paths(unary: Nats, edges: list[Nats]) -> list[tuple[float, list[int]]]:
    """Score and candidates of every possible path, best first, equal ones by their last candidates."""
    found = []
    for path in itertools.product(range(len(unary[0])), repeat=len(unary)):
        score = unary[0][path[0]]
        for t in range(1, len(unary)):
            score += edges[t - 1][path[t - 1]][path[t]] + unary[t][path[t]]
        if score > -math.inf:
            found.append((score, list(path)))
    return sorted(found, key=lambda one: (-one[0], one[1][::-1]))


def plain_viterbi(unary: Nats, edges: list[Nats]) -> list[int] | None:
    """Viterbi with lists: the best path, None when there is no path."""
    score, back = unary[0], []
    for t in range(1, len(unary)):
        ways = [
            [score[i] + edges[t - 1][i][j] + unary[t][j] for i in range(len(score))]
            for j in range(len(score))
        ]
        back.append([way.index(max(way)) for way in ways])
        score = [max(way) for way in ways]
    if max(score) == -math.inf:
        return None
    path = [score.index(max(score))]
    for step in reversed(back):
        path.append(step[path[-1]])
    return path[::-1]


@st.composite
def lattices(draw: st.DrawFn, exact: bool) -> tuple[Tensor, Tensor]:
    """Unary scores and edges of a few small lattices; ``exact`` scores tie, the others never do."""
    rows, positions, candidates = (draw(st.integers(1, most)) for most in (3, 5, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shapes = [(rows, positions, candidates), (rows, positions - 1, candidates, candidates)]
    if exact:
        choices = [torch.randint(len(TIES), shape, generator=generator) for shape in shapes]
        unary, edges = (torch.tensor(TIES)[chosen] for chosen in choices)
    else:
        unary, edges = (torch.randn(shape, generator=generator) * 10 for shape in shapes)
    return unary, edges


def assert_best(found: BestPaths, lattice: tuple[Tensor, Tensor]) -> None:
    unary, edges = lattice
    assert found.choices.shape == unary.shape[:2]
    for row in range(len(unary)):
        args = unary[row].double().tolist(), edges[row].double().tolist()
        paths = all_paths(*args)
        choices = found.choices[row].tolist()
        if not paths:
            assert plain_viterbi(*args) is None
            assert found.scores[row] == -math.inf
            assert not any(choices)
            continue
        score, path = paths[0]
        assert choices == path == plain_viterbi(*args)
        assert found.scores[row].item() == pytest.approx(score, abs=1e-8)
        assert found.position_scores[row].sum().item() == pytest.approx(score, abs=1e-8)


@given(st.booleans().flatmap(lattices))
def test_the_best_path_is_that_of_brute_force(lattice: tuple[Tensor, Tensor]) -> None:
    assert_best(viterbi(*lattice), lattice)


@given(st.booleans().flatmap(lattices), st.integers(1, 6))
def test_the_n_best_paths_are_those_of_brute_force(
    lattice: tuple[Tensor, Tensor], count: int
) -> None:
    unary, edges = lattice
    found = n_best(*lattice, count=count)
    assert found.choices.shape == (unary.size(0), count, unary.size(1))
    for row in range(len(unary)):
        paths = all_paths(unary[row].double().tolist(), edges[row].double().tolist())
        for rank in range(count):
            if rank >= len(paths):
                assert found.scores[row, rank] == -math.inf
                continue
            score, path = paths[rank]
            assert found.choices[row, rank].tolist() == path
            assert found.scores[row, rank].item() == pytest.approx(score, abs=1e-8)
            assert found.position_scores[row, rank].sum().item() == pytest.approx(score, abs=1e-8)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.integers(0, 2**32))
def test_the_first_of_the_best_is_the_best(
    length: int, width: int, coarse: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(4, length, width, generator=generator) * 30
    edges = torch.randn(4, length - 1, width, width, generator=generator) * 30
    if coarse:
        unary, edges = (
            (unary / 30).round() / 3,
            (edges / 30).round() / 3,
        )  # ties that floats would miss
    edges[torch.rand(edges.shape, generator=generator) < 0.2] = -math.inf
    best, first = viterbi(unary, edges), n_best(unary, edges, 1)
    assert torch.equal(first.choices.squeeze(1), best.choices)
    assert torch.equal(first.scores.squeeze(1), best.scores)


def test_ties_go_to_the_lowest_at_the_last_position_first() -> None:
    # Of the two best paths 0 1 and 1 0, the second is lower at its end.
    edges = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
    assert viterbi(torch.zeros(1, 2, 2), edges).choices.tolist() == [[1, 0]]
    found = n_best(torch.zeros(1, 2, 2), edges, count=4).choices.tolist()
    assert found == [[[1, 0], [0, 1], [0, 0], [1, 1]]]


def test_a_row_of_a_batch_is_the_row_alone() -> None:
    generator = torch.Generator().manual_seed(5)
    unary, edges = (
        torch.randn(6, 12, 4, generator=generator),
        torch.randn(6, 11, 4, 4, generator=generator),
    )
    batch = viterbi(unary, edges)
    for row in range(6):
        alone = viterbi(unary[row : row + 1], edges[row : row + 1])
        assert torch.equal(batch.choices[row], alone.choices[0])
        assert batch.scores[row] == alone.scores[0]


def test_the_device_is_never_asked() -> None:
    # Tensors without data: anything that needed a value on the host would fail.
    unary, edges = torch.empty(2, 7, 4, device="meta"), torch.empty(2, 6, 4, 4, device="meta")
    assert viterbi(unary, edges).choices.shape == (2, 7)
    assert n_best(unary, edges, 3).choices.shape == (2, 3, 7)


def test_scores_of_half_precision_and_large_ones() -> None:
    unary = torch.tensor([[[1.0, -5e4], [2.0, -6e4]]], dtype=torch.float16)
    edges = torch.tensor([[[[-torch.inf, 0.0], [0.0, 0.0]]]], dtype=torch.float16)
    found = viterbi(unary, edges)
    assert found.choices.tolist() == [[1, 0]]
    assert found.scores.tolist() == [unary[0, 0, 1].item() + 2]
