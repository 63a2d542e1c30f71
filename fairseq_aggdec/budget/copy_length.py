"""Tells how long copies are: as long as is worth their cost, by the chances of their tokens (``--draft-tokens``)."""

import sys
from collections.abc import Callable, Sequence

from fairseq_aggdec.budget.decaying_mean import DecayingMean
from fairseq_aggdec.budget.draft_length import RESTING_BATCHES
from fairseq_aggdec.budget.price import CallPrice

# What is believed before anything was seen, as if two tokens had been checked: most texts that are at hand are
# mostly right, and two tokens are soon outweighed where they are not.
PRIOR, PRIOR_WEIGHT = 0.975, 2.0
# Tokens of all sentences that are remembered, some dozens of sentences: texts change.
MEMORY = 1000.0
# Where drafts hardly ever stand, some batches in a row are decoded without; then one is drafted for again, in case
# the text has changed. Tokens of that one's first drafts, and of the very first of all on CPU: a guess that costs
# next to nothing.
PROBE_LENGTH = 4
# How many more tokens per cost than none a draft must promise: finding and verifying drafts has costs that are in no
# line, and no method may be slower than greedy decoding.
MARGIN = 0.1
# Drafts of this length decide whether to draft in a batch at all: longer ones gain next to nothing more.
LONG = 64


class CopyLength:
    """Limits copies, so that a heavily edited sentence does not pay for tokens that are rejected.

    The model: each token of a draft is accepted with chance p, as long as those before it are; p depends on the
    sentence, for which the compiled library learns it (``copying.h``). A draft of K tokens then emits
    (1 - p^(K+1)) / (1 - p) tokens and costs what a call with K tokens more costs. The limit is the K with the most
    tokens per cost.

    Attributes:
        fixed, most: whether the length is not learned, and tokens of any draft.
        total: the chance p of all sentences.
        resting: drafts were hardly ever accepted, so none is worth its cost, not even in a batch of one sentence; the
            current batch is decoded without drafts.
        rows: sentences of the batch.
        unknown: nothing was ever drafted.
    """

    fixed, most = False, sys.maxsize

    def __init__(self) -> None:
        self.total = DecayingMean(1.0, PRIOR, PRIOR_WEIGHT)
        self.rows = 0
        self.unseen = True
        self.resting, self.probing, self.rested = False, False, 0
        self.unknown = False

    def start(self, rows: int, price: CallPrice, on_cpu: bool) -> None:
        """Takes up a batch of ``rows`` sentences."""
        self.price, self.rows = price, rows
        self.unknown = self.unseen and rows > 1 and on_cpu
        self.total.limit(MEMORY)
        pointless = worthwhile(self.total.mean, self.cost_of(1), 1) == 0
        self.resting = pointless and self.rested < RESTING_BATCHES
        self.probing = pointless and not self.resting
        self.rested = self.rested + 1 if self.resting else 0

    def limit(self, room: int) -> int:
        """The length, at most ``room``, of all drafts of a batch that a device decodes alone."""
        cost, chance = self.cost_of(max(1, self.rows)), self.total.mean
        if self.rows > 1 and not self.probing and not worthwhile(chance, cost, LONG):
            return 0
        if self.probing or self.unknown:
            return min(PROBE_LENGTH, room)
        return worthwhile(chance, cost, room)

    def cost_of(self, rows: int) -> Callable[[int], float]:
        """Cost of an iteration that drafts a number of tokens for each row."""
        return lambda length: self.price.call(rows * (1 + length))

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Learns from drafts of any rows."""
        for proposed, count in zip(drafted, accepted, strict=True):
            if proposed:  # nothing was checked behind the first rejected token
                self.total.add(count, count + (count < proposed))
                self.unseen = False


class FixedCopyLength(CopyLength):
    """One longest draft for every row and batch; Algorithm 1 of Ge et al. has no limit.

    Args:
        limit: tokens; None: whatever is left of the text.
    """

    fixed = True

    def __init__(self, limit: int | None):
        super().__init__()
        if limit is not None:
            self.most = limit

    def start(self, rows: int, price: CallPrice, on_cpu: bool) -> None:
        super().start(rows, price, on_cpu)
        self.resting = self.probing = False

    def limit(self, room: int) -> int:
        return min(self.most, room)


def worthwhile(chance: float, cost: Callable[[int], float], room: int) -> int:
    """:func:`best_length`; 0 where that promises less than :data:`MARGIN` more than no draft."""
    length = best_length(chance, cost, room)
    expected = sum(chance**place for place in range(length + 1))
    return length if expected * cost(0) >= (1 + MARGIN) * cost(length) else 0


def best_length(chance: float, cost: Callable[[int], float], room: int) -> int:
    """The first K <= room behind which a further token brings less for its cost than those before; where each costs as
    much as the one before, or more, that is the argmax of expected tokens / cost(K)."""
    expected, gain = 1.0, 1.0
    for length in range(room):
        gain *= chance
        if gain * cost(length) <= expected * (cost(length + 1) - cost(length)):
            return length
        expected += gain
    return room
