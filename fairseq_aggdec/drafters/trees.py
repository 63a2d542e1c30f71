"""Growing a tree of drafted tokens: the likeliest paths through the candidates of a drafter's slots, best first.

A drafter says at once how likely the candidates of each slot are, after each candidate of the slot before
(:class:`~fairseq_aggdec.drafters.chain.FastChain`) or whatever stands there. So the chance of a path is a product of
table entries, and the N likeliest beginnings of paths are a tree, found with a heap: of every node that is taken, the
likeliest next token and the next likely one in its own place become candidates. As in the trees of Miao et al.
(SpecInfer, 2024) and Li et al. (EAGLE-2, 2024), but without a call of a network for each of their levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from torch import Tensor

from fairseq_aggdec.budget.call_cost import DRAFTER, OF_DRAFTS
from fairseq_aggdec.budget.draft_length import NodeBudget
from fairseq_aggdec.windows.draft import Draft
from fairseq_aggdec.windows.transfer import read

# Tokens of each slot that are looked at. In chains half as many find 2 % fewer tokens, twice as many 0.5 % more.
CANDIDATES = 8
# By how many slots the deepest tree of late is forgotten with every draft; what is believed to be it at first.
FORGET_DEPTH, REMEMBERED = OF_DRAFTS["FORGET_DEPTH"], 8.0


class Candidates(NamedTuple):
    """Values of M tokens of each of the k slots of B rows; on the host.

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
    """Candidates from their ids (B, k, M) and logits (B, k, M, M), after each of those before; one transfer."""
    chances, order = scores.float().log_softmax(-1).sort(-1, descending=True)
    tokens, order, chances = read([tokens, order, chances])
    return Candidates(tokens.long().tolist(), order.long().tolist(), chances.tolist())


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

    @property
    def slots(self) -> list[int]:
        """Slots that the tokens fill, from 0."""
        slots = [-1]
        for parent in self.parents:
            slots.append(slots[parent] + 1)
        return slots[1:]


class TreeRequest(NamedTuple):
    """Request for trees of the compiled library.

    Attributes:
        last: the token before the first slot of each row.
        room: how many slots of each row may be filled.
        nodes, eos, fixed_cost: as for :func:`grow`.
        branches: as in a tree; else one path, of each slot the likeliest token behind the one before.
    """

    last: Sequence[int]
    room: Sequence[int]
    nodes: int
    eos: int
    fixed_cost: float
    branches: bool = True


# :meth:`~fairseq_aggdec.drafters.proposer.Proposer.grow` of some features.
Grow = Callable[[TreeRequest], list[GrownTree]]


def grow(
    found: Candidates,
    row: int,
    slots: int,
    nodes: int,
    eos: int,
    fixed_cost: float = math.inf,
    branches: bool = True,
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
        chance = math.exp(-cost)
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


class TreeGrower:
    """Makes trees of what a drafter's slots say.

    Args:
        budget: how many tokens they have.

    Attributes:
        step_cost, drafter_cost: of an iteration beside its positions, and of the drafter's call, in positions; only a
            budget that ``stops`` reads them.
        deepest: slots that trees fill, the most of late.
    """

    def __init__(self, budget: NodeBudget):
        self.budget, self.step_cost, self.drafter_cost = budget, math.inf, DRAFTER
        self.deepest = REMEMBERED

    def slots(self, most: int) -> int:
        """Tells how many slots, at most ``most``, a drafter is to fill: no more than a tree has nodes, and where it may
        stop before one more than trees reach, for what is drafted behind that is not looked at."""
        most = min(most, self.budget.most)
        return min(most, math.ceil(self.deepest) + 1) if self.budget.stops else most

    def draft(self, tokens: Tensor, scores: Tensor, room: Sequence[int], eos: int) -> Draft:
        """Trees of candidates (B, k, M) with logits (B, k, M, M); of each row ``room`` slots may be filled."""
        found, cost = candidates(tokens, scores), self._fixed_cost(len(room))
        slots, budget = tokens.size(1), self.budget
        return self._drafted(
            [
                grow(found, row, min(most, slots), budget.most, eos, cost, budget.branches)
                for row, most in enumerate(room)
            ]
        )

    def alone(self, logits: Tensor, room: Sequence[int], eos: int) -> Draft:
        """Trees from logits (B, k, V) of slots that know nothing of each other."""
        best = logits.topk(min(CANDIDATES, logits.size(-1)))
        scores = best.values.unsqueeze(2).expand(-1, -1, best.values.size(2), -1)
        return self.draft(best.indices, scores, room, eos)

    def compiled(self, grow: Grow, last: Sequence[int], room: Sequence[int], eos: int) -> Draft:
        """Trees grown in the compiled library behind the tokens ``last``; see :data:`Grow`."""
        cost, budget = self._fixed_cost(len(room)), self.budget
        return self._drafted(grow(TreeRequest(last, room, budget.most, eos, cost, budget.branches)))

    def _fixed_cost(self, rows: int) -> float:
        """Cost of an iteration beside its draft, for each row, in nodes."""
        return 1.0 + (self.step_cost + self.drafter_cost) / rows if self.budget.stops else math.inf

    def _drafted(self, trees: list[GrownTree]) -> Draft:
        if self.budget.stops:
            deepest = max((slot for tree in trees for slot in tree.slots), default=-1) + 1
            self.deepest = max(deepest, self.deepest - FORGET_DEPTH)
        tokens = [tree.tokens for tree in trees]
        return Draft(tokens, [tree.parents for tree in trees] if self.budget.branches else None)
