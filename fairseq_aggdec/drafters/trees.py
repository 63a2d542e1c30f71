"""Growing a tree of drafted tokens: the likeliest paths through the candidates of a drafter's slots, best first.

A drafter says at once how likely the candidates of each slot are, after each candidate of the slot before
(:class:`~fairseq_aggdec.drafters.chain.FastChain`) or whatever stands there. So the chance of a path is a product of
table entries, and the N likeliest beginnings of paths are a tree, found with a heap: of every node that is taken, the
likeliest next token and the next likely one in its own place become candidates. As in the trees of Miao et al.
(SpecInfer, 2024) and Li et al. (EAGLE-2, 2024), but without a call of a network for each of their levels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import torch
from torch import Tensor

from fairseq_aggdec.decoding.block_size import NodeBudget
from fairseq_aggdec.decoding.draft import Draft, TreeDraft, Verification
from fairseq_aggdec.drafters.calibration import Calibration
from fairseq_aggdec.drafters.draft_length import STEP_COST_IN_TOKENS

# Tokens of each slot that are looked at. In chains half as many find 2 % fewer tokens, twice as many 0.5 % more.
CANDIDATES = 8


@dataclass
class Candidates:
    """What M tokens of each of the k slots of B rows are worth; on the host.

    Attributes:
        tokens: (B, k, M) ids.
        order: (B, k, M, M) places among M: after each candidate of the slot before, the likeliest first. What stands
            before the first slot is known: all its entries are the same.
        chances: (B, k, M, M) logarithms of their chances, in nats.
    """

    tokens: list[list[list[int]]]
    order: list[list[list[list[int]]]]
    chances: list[list[list[list[float]]]]


def candidates(tokens: Tensor, scores: Tensor, calibration: Calibration) -> Candidates:
    """Candidates from their ids (B, k, M) and logits (B, k, M, M), after each of those before; one transfer."""
    chances, order = scores.float().log_softmax(-1).sort(-1, descending=True)
    chances = calibration.chances(chances)
    if not tokens.is_cuda:
        return Candidates(tokens.tolist(), order.tolist(), chances.tolist())
    whole = torch.cat([tokens.unsqueeze(3).double(), order.double(), chances.double()], 3).cpu()
    count = order.size(3)
    ids, places = whole[..., 0].long(), whole[..., 1 : 1 + count].long()
    return Candidates(ids.tolist(), places.tolist(), whole[..., 1 + count :].tolist())


@dataclass
class Grown:
    """The tree of one row.

    Attributes:
        tokens: in the order in which they were taken.
        parents: which each follows, counted from 1; 0 is the last committed token.
        chances: logarithms of the chance that each stands, in nats.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)


def grow(
    found: Candidates, row: int, slots: int, nodes: int, eos: int, fixed_cost: float = math.inf
) -> Grown:
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
    """
    tree = Grown()
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
        if rank + 1 < most:
            other = base - chances[slot][before][rank + 1]
            heappush(heap, (other, parent, slot, before, rank + 1, base))
        if slot + 1 < slots and token != eos:
            longer = cost - chances[slot + 1][place][0]
            heappush(heap, (longer, len(tree.tokens), slot + 1, place, 0, cost))
    return tree


class TreeGrower:
    """Makes trees of what a drafter's slots say, and learns from what became of them.

    Args:
        budget: how many tokens they have.
    """

    def __init__(self, budget: NodeBudget):
        self.budget = budget
        self.calibration = Calibration()
        self.trees: list[Grown] = []

    def draft(self, tokens: Tensor, scores: Tensor, room: Sequence[int], eos: int) -> Draft:
        """Trees of candidates (B, k, M) with logits (B, k, M, M); of each row ``room`` slots may be filled."""
        found = candidates(tokens, scores, self.calibration)
        guess = STEP_COST_IN_TOKENS.get(tokens.device.type, STEP_COST_IN_TOKENS["cuda"])
        cost = self.budget.fixed_cost(len(room), guess)
        self.trees = [
            grow(found, row, min(most, tokens.size(1)), self.budget.most, eos, cost)
            for row, most in enumerate(room)
        ]
        return TreeDraft(
            [tree.tokens for tree in self.trees], [tree.parents for tree in self.trees]
        )

    def alone(self, logits: Tensor, room: Sequence[int], eos: int) -> Draft:
        """The same from logits (B, k, V) of slots that know nothing of each other."""
        best = logits.topk(min(CANDIDATES, logits.size(-1)))
        scores = best.values.unsqueeze(2).expand(-1, -1, best.values.size(2), -1)
        return self.draft(best.indices, scores, room, eos)

    def forget(self) -> None:
        """Forgets what was learned from the batches before (but measured times)."""
        self.calibration = Calibration()

    def observe(self, verification: Verification, seconds: float) -> None:
        """Learns from the last draft."""
        if [len(tree.tokens) for tree in self.trees] != verification.drafted:
            return  # nothing was drafted, or what was drafted has been cut down
        self.budget.observe(len(self.trees), sum(verification.drafted), seconds)
        first = 0
        for place, tree in enumerate(self.trees):
            if verification.paths is None:
                standing = set(range(verification.accepted[place] + 1))
            else:
                standing = {slot - first for slot in verification.paths[place]}
            first += verification.window.widths[place]
            chances = [0.0, *tree.chances]
            slots = [-1]
            for parent in tree.parents:
                slots.append(slots[parent] + 1)
            self.calibration.observe(
                (slots[node], chances[node] - chances[parent], node in standing)
                for node, parent in enumerate(tree.parents, 1)
                if parent in standing
            )
        self.trees = []
