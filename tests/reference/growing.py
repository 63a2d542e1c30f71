"""Trees of drafted tokens grown in plain Python, and by one call of the compiled library."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.drafters.proposer import Proposer
from fairseq_aggdec.kernels.library import SlotsStruct
from fairseq_aggdec.search.compiled.searches import address
from fairseq_aggdec.windows.transfer import int64_array

FIRST_SLOTS = 5  # slots of a draft that are learned from


class Candidates(NamedTuple):
    """What M tokens of each of the k slots of B rows are worth; on the host.

    Attributes:
        tokens: (B, k, M) ids.
        order: (B, k, M, M) places among M: after each candidate of the slot before, the likeliest first. The token
            before the first slot is known: all its entries are alike.
        chances: (B, k, M, M) logarithms of their chances, in nats.
    """

    tokens: list[list[list[int]]]
    order: list[list[list[list[int]]]]
    chances: list[list[list[list[float]]]]


def candidates(tokens: Tensor, scores: Tensor) -> Candidates:
    """Candidates from their ids (B, k, M) and logits (B, k, M, M), after each of those before."""
    chances, order = scores.float().log_softmax(-1).sort(-1, descending=True)
    return Candidates(tokens.tolist(), order.tolist(), chances.tolist())


@dataclass
class GrownTree:
    """The tree of one row.

    Attributes:
        tokens: in the order in which they were taken.
        parents: which each follows, counted from 1; 0 is the last committed token.
        chances: logarithms of the chance that each stands, in nats.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)


class TreeRequest(NamedTuple):
    """What trees the compiled library is asked for.

    Attributes:
        last: the token before the first slot of each row.
        room: how many slots of each row may be filled.
        nodes, eos, fixed_cost, trust: as for :func:`grow`.
        branches: as in a tree; else one path, of each slot the likeliest token behind the one before.
    """

    last: Sequence[int]
    room: Sequence[int]
    nodes: int
    eos: int
    fixed_cost: float
    branches: bool = True
    trust: float = 1.0


def grow(
    found: Candidates,
    row: int,
    slots: int,
    nodes: int,
    eos: int,
    fixed_cost: float = math.inf,
    branches: bool = True,
    trust: float = 1.0,
) -> GrownTree:
    """The likeliest nodes of a row's tree, those before each among them; nothing stands behind ``</s>``.

    Nodes are taken as long as they bring more tokens for their cost than those before: an iteration with N of them
    costs ``fixed_cost`` + N and is expected to gain 1 + the sum of their chances. One is taken in any case: whether
    drafting pays at all is decided before the drafter runs.

    Args:
        found: of all rows.
        row: which.
        slots: how many of them may be filled.
        nodes: how many tokens are wanted.
        eos: ends a path.
        fixed_cost: of an iteration, in nodes.
        branches: else one path, of each slot the likeliest token behind the one before.
        trust: how many times its chance a token is accepted.
    """
    tree = GrownTree()
    if slots < 1:
        return tree
    tokens, order, chances = found.tokens[row], found.order[row], found.chances[row]
    most = len(tokens[0])
    # Minus the log-chance, the node before, slot, candidate before, rank in its place, minus the log-chance before.
    heap = [(-chances[0][0][0], 0, 0, 0, 0, 0.0)]
    expected = 1.0
    while heap and len(tree.tokens) < nodes:
        cost, parent, slot, before, rank, base = heappop(heap)
        chance = trust * math.exp(-cost)
        if tree.tokens and chance * (fixed_cost + len(tree.tokens)) <= expected:
            break
        expected += chance
        place = order[slot][before][rank]
        token = tokens[slot][place]
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.chances.append(-cost)
        if branches and rank + 1 < most:
            other = base - chances[slot][before][rank + 1]
            heappush(heap, (other, parent, slot, before, rank + 1, base))
        if slot + 1 < slots and token != eos:
            longer = cost - chances[slot + 1][place][0]
            heappush(heap, (longer, len(tree.tokens), slot + 1, place, 0, cost))
    return tree


def compiled_trees(proposer: Proposer, features: Tensor, asked: TreeRequest) -> list[GrownTree]:
    """What the library grows from features (B, k, C) fp32 of slots, from which the proposer learns first."""
    rows, slots, _ = features.shape
    if proposer.narrowing.due:
        proposer.learn_rows(features[:, :FIRST_SLOTS].flatten(0, 1))
    features, size = features.contiguous(), rows * asked.nodes
    as_given = torch.tensor([[1.0] * slots, [0.0] * slots])
    given = int64_array([*asked.last, *asked.room])
    found = int64_array([0] * (2 * size + rows))
    chances = (ctypes.c_double * size)()
    call = SlotsStruct(rows, slots, torch.get_num_threads(), features.data_ptr(), address(given))
    call.room = address(given) + 8 * rows
    call.slopes, call.shifts = as_given[0].data_ptr(), as_given[1].data_ptr()
    call.nodes, call.eos, call.branches = asked.nodes, asked.eos, asked.branches
    call.trust = asked.trust
    costs = (ctypes.c_double * (asked.nodes + 1))(
        *(asked.fixed_cost + nodes for nodes in range(asked.nodes + 1))
    )
    if asked.fixed_cost < math.inf:
        call.costs = ctypes.addressof(costs)
    call.tokens = address(found)
    call.parents, call.counts = call.tokens + 8 * size, call.tokens + 16 * size
    call.chances = address(chances)
    proposer.library.aggdec_grow(proposer.address, address(call))
    trees = []
    for row in range(rows):
        first, count = row * asked.nodes, found[2 * size + row]
        own = slice(first, first + count)
        parents = found[size + first : size + first + count]
        trees.append(GrownTree(list(found[own]), list(parents), list(chances[own])))
    return trees
