"""Growing a tree of drafted tokens: the likeliest paths through the candidates of a drafter's slots, best first.

A drafter says at once how likely the candidates of each slot are, after each candidate of the slot before
(:class:`~fairseq_aggdec.drafters.chain.FastChain`) or whatever stands there. So the chance of a path is a product of
table entries, and the N likeliest beginnings of paths are a tree, found with a heap: of every node that is taken, the
likeliest next token and the next likely one in its own place become candidates. As in the trees of Miao et al.
(SpecInfer, 2024) and Li et al. (EAGLE-2, 2024), but without a call of a network for each of their levels. The compiled
library grows them (``kernels/source/drafts.h``); elsewhere one path is drafted.
"""

from dataclasses import dataclass

from fairseq_aggdec.budget.draft_length import OF_DRAFTS, NodeBudget

# Tokens of each slot that are looked at. In chains half as many find 2 % fewer tokens, twice as many 0.5 % more.
CANDIDATES = 8
# The depth that trees are believed to have at first.
USUAL_DEPTH = 4.0
# Slots that are filled beyond the mean depth.
SPARE_SLOTS = OF_DRAFTS["SPARE_SLOTS"]


@dataclass
class TreeGrower:
    """Amounts that the compiled library is to grow, and what it has learned.

    Attributes:
        budget: how many tokens trees have.
        depth: of trees, a mean of the last ones.
    """

    budget: NodeBudget
    depth: float = USUAL_DEPTH

    def slots(self, size: int) -> int:
        """Slots of ``size`` that the next trees read."""
        most = min(size, self.budget.most)
        return min(most, int(self.depth + SPARE_SLOTS)) if self.budget.stops else most
