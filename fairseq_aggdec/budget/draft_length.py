"""Tells how many tokens a model drafts at once: a fixed number, or none where drafts do not pay (``--draft-tokens
auto``, ``--draft-tree auto``)."""

import math
from dataclasses import dataclass

from fairseq_aggdec.budget.call_cost import DRAFTER, DRAFTER_INT8, OF_DRAFTS, usual_cost
from fairseq_aggdec.budget.decaying_mean import DecayingMean

# Believed before any draft was seen: the tokens that an iteration with a draft gains, the tokens of the draft, and the
# number of iterations that this counts as. Trees of a trained drafter have these values (docs/trees.md). Drafts that
# are always rejected are given up after some 16 of them.
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
# The tree of --draft-tree auto: in seven of the nine tables of docs/results/trees.md faster than a learned size.
AUTO_NODES = 5


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

    def __init__(self, size: int):
        self.size = size

    def start(self, rows: int, by: str, int8: bool = False) -> None:
        """Takes up a batch of ``rows`` sentences; ``by``: a key of :data:`~fairseq_aggdec.budget.call_cost.USUAL`;
        ``int8``: the verifier computes in 8 bits."""

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
    """All of a block, or 0 where drafts hardly ever stand, but for a few tries. No clock has a say.

    Args:
        weighs: a draft must gain more tokens than it usually costs, by the number of sentences. Not on a GPU, where a
            wider window costs next to nothing.
        per_batch: decides once for a batch, else by the number of sentences left. For half precision, where what
            is read beside a token decides what its products round to; so is a draft length that does not weigh.
    """

    def __init__(self, size: int, weighs: bool, per_batch: bool = False):
        super().__init__(size)
        self.weighs, self.per_batch = weighs, per_batch or not weighs
        self.forget()

    def forget(self) -> None:
        prior, weight = (PRIOR, PRIOR_WEIGHT) if self.weighs else (PRIOR_UNWEIGHED, 1.0)
        self.gained, self.drafted = (
            DecayingMean(REMEMBER, believed, weight) for believed in (prior, DRAFTED)
        )
        self.rested = 0

    def start(self, rows: int, by: str, int8: bool = False) -> None:
        self.step_cost, due = usual_cost(by), self.rested == RESTING_BATCHES
        self.drafter_cost = DRAFTER_INT8 if int8 else DRAFTER
        self.pays = self._pays(rows)
        self.tries: float = 0
        if due and not self.pays:
            self.tries = math.inf if self.per_batch else TRIES
            self.gained.limit(STILL_KNOWN)
        self.rested = 0 if self.pays or due else self.rested + 1

    def plan(self, rows: int) -> int:
        pays = self.pays if self.per_batch else self._pays(rows)
        return self.size if pays or self.tries else 0

    def _pays(self, rows: int) -> bool:
        if not self.weighs:
            return self.gained.mean >= LEAST_GAIN
        plain = self.step_cost + rows
        drafting = plain + self.drafter_cost + rows * self.drafted.mean
        return self.gained.mean * plain >= (1.0 + MARGIN) * drafting

    def observe(self, rows: int, drafted: int, emitted: int) -> None:
        if drafted:
            self.gained.add(emitted, rows)
            self.drafted.add(drafted, rows)
            self.tries = max(0, self.tries - rows)

    def batch_ended(self, gain: float) -> None:
        if self.pays or self.tries:
            self.gained.add(gain)
