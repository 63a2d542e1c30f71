"""Tells how many tokens a model drafts at once: a fixed number, or none where drafts do not pay (``--draft-tokens
auto``, ``--draft-tree auto``)."""

import math
from dataclasses import dataclass

from fairseq_aggdec.budget.decaying_mean import DecayingMean
from fairseq_aggdec.budget.price import CallPrice
from fairseq_aggdec.kernels.library import constants

# Of drafts of models, which the compiled library weighs with the same numbers.
OF_DRAFTS = constants("search/draft_budget.h")

# Believed before any draft was seen: the tokens that an iteration with a draft gains, the tokens of the draft, and the
# number of iterations that this counts as. Trees of a trained drafter have these values (docs/trees.md). Drafts that
# are always rejected are given up after some 20 of them.
PRIOR, DRAFTED, PRIOR_WEIGHT = 3.5, 5.0, 20.0
# The same where costs are not weighed: one token is accepted.
PRIOR_UNWEIGHED = 2.0
# The weight of older drafts shrinks by this factor with each new one: the last 170 or so count.
REMEMBER = OF_DRAFTS["REMEMBER"]
# How many more tokens per cost than none a draft must promise: what calls cost is not known exactly.
MARGIN = OF_DRAFTS["DRAFT_MARGIN"]
# Tokens per iteration below which a draft cannot pay where costs are not weighed: one takes longer than that of
# iterations without.
LEAST_GAIN = 1.6
# After RESTING_BATCHES batches without drafts, drafts are tried again for TRIES sentences. What was seen before then
# counts as at most STILL_KNOWN iterations.
RESTING_BATCHES, TRIES, STILL_KNOWN = 31, 4, 10.0
# The largest tree of --draft-tree auto; its tokens are worth their cost, by their chances.
AUTO_NODES = 8


@dataclass(frozen=True)
class NodeBudget:
    """Tells how many tokens the tree of a row has.

    Attributes:
        most: at most this many.
        stops: no more than are worth their usual cost by their chances; else always ``most``.
        branches: whether several may follow the same token; else the tree is a path.
    """

    most: int
    stops: bool = False
    branches: bool = True


class DraftLength:
    """Says before an iteration how many tokens to draft, and is told afterwards what came of it. This one always says
    the same number."""

    weighs = False  # what calls cost has a say

    def __init__(self, size: int):
        self.size = size

    def start(self, rows: int, price: CallPrice, slots: int = 0) -> None:
        """Takes up a batch of ``rows`` sentences; ``slots``: of a row that the drafter reads."""
        self.suppose(price)
        self.slots = slots

    def suppose(self, price: CallPrice) -> None:
        """Takes a price for what calls cost before the batch is taken up."""
        self.price = price

    def plan(self, rows: int) -> int:
        """Tokens to draft for each of the ``rows`` sentences that are left; 0 for none."""
        return self.size

    def observe(self, rows: int, drafted: int, emitted: int) -> None:
        """Learns from an iteration: tokens drafted and gained, of all its rows."""

    def batch_ended(self, gain: float) -> None:
        """A device has decoded the batch alone; ``gain`` is in tokens per iteration."""

    def forget(self) -> None:
        """Forgets what was learned from the batches before."""


class AdaptiveDraftLength(DraftLength):
    """All of a block, or 0 where drafts hardly ever stand, but for a few tries.

    Args:
        weighs: a draft must gain more tokens than it costs, by the number of sentences. Not on a GPU, where a
            wider window costs next to nothing.
        per_batch: decides once for a batch, else by the number of sentences left. For half precision, where what
            is read beside a token decides what its products round to; so is a draft length that does not weigh.
    """

    pays, tries, rows, drafts = False, 0.0, 0, False

    def __init__(self, size: int, weighs: bool, per_batch: bool = False):
        super().__init__(size)
        self.weighs, self.per_batch = weighs, per_batch or not weighs
        self.forget()

    def forget(self) -> None:
        prior, weight = (PRIOR, PRIOR_WEIGHT) if self.weighs else (PRIOR_UNWEIGHED, 1.0)
        self.gained, self.drafted, self.hoped = (
            DecayingMean(REMEMBER, believed, weight) for believed in (prior, DRAFTED, prior - 1.0)
        )
        self.rested = 0

    def start(self, rows: int, price: CallPrice, slots: int = 0) -> None:
        super().start(rows, price, slots)
        self.rows, self.drafts = rows, False
        due = self.rested == RESTING_BATCHES
        self.pays = self._pays(rows)
        self.tries = 0.0
        if due and not self.pays:
            self.tries = math.inf if self.per_batch else TRIES
            self.gained.limit(STILL_KNOWN)
        self.rested = 0 if self.pays or due else self.rested + 1

    def plan(self, rows: int) -> int:
        # For the last few of a batch it does not pay that the drafter reads all sources.
        few = not self.drafts and 2 * rows < self.rows
        pays = self.pays if self.per_batch else not few and self._pays(rows)
        return self.size if pays or self.tries else 0

    def _pays(self, rows: int) -> bool:
        if not self.weighs:
            return self.gained.mean >= LEAST_GAIN
        drafting = self.price.drafting(rows, self.drafted.mean, self.slots)
        return self.gained.mean * self.price.call(rows) >= (1.0 + MARGIN) * drafting

    def observe(self, rows: int, drafted: int, emitted: int) -> None:
        if drafted:
            self.drafts = True
            self.gained.add(emitted, rows)
            self.drafted.add(drafted, rows)
            self.tries = max(0, self.tries - rows)

    def batch_ended(self, gain: float) -> None:
        if self.pays or self.tries:
            self.gained.add(gain)
