"""How long a draft is worth: learned from what became of the drafts before."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_aggdec.budget.times import Times

# What a window step costs beyond its tokens (reading the weights, host work), in tokens' worth of arithmetic: the
# intercept over the slope of step time against window width. CPU: as `aggdec bench --step-cost` measured it
# on the shipped model (docs/results/iad-step_cost-cpu2.md). Compiled kernels: with which IAD was fastest there, in fp32
# and in 8 bits (docs/performance.md). CUDA and all others: a guess until it is measured.
STEP_COST_IN_TOKENS = {"kernels": 5.0, "cpu": 26.0, "cuda": 256.0}

# Where it is a guess: iterations of so many rows after which measured times are believed, and within which bounds.
MEASURED = 200
LEAST_COST, MOST_COST = 5.0, 4096.0

# What is believed before anything was seen, as if so many draft tokens had been checked.
PRIOR_ACCEPTED, PRIOR_REJECTED = 1.95, 0.05
PRIOR_WEIGHT_OF_ROW = 10.0

# Where drafts hardly ever stand, so many batches in a row are decoded without; then one is drafted for again, with so
# many tokens at its beginning, in case the text has changed. The very first drafts of a batch on CPU, where every token
# costs, are as short: nothing is known yet.
RESTING_BATCHES = 31
PROBE_LENGTH = 4
# How many more tokens per cost than none a draft must promise: drafting has costs that are not in the line (finding and
# judging drafts), and no method may be slower than greedy decoding.
MARGIN = 0.1
# Whether to draft in a batch at all is asked for drafts as long as this.
LONG = 64
# Draft tokens that are remembered: what was long ago does not count for ever.
MEMORY = 1000.0


@dataclass
class Tally:
    """Draft tokens accepted, and drafts ended by a rejection."""

    accepted: float = 0.0
    rejected: float = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        self.accepted += accepted
        self.rejected += accepted < drafted

    @property
    def seen(self) -> float:
        return self.accepted + self.rejected

    def forget(self, memory: float) -> None:
        """Keeps the ratio, with the weight of ``memory`` tokens at most."""
        share = min(1.0, memory / self.seen)
        self.accepted, self.rejected = share * self.accepted, share * self.rejected


class StepCost:
    """What an iteration costs beyond its tokens, in tokens' worth: the line through times, by power of two of rows.

    The time of an iteration is that between two looks at accepted tokens, which are read in any case: nothing waits.
    """

    def __init__(self, guess: float):
        self.guess = guess
        self.times: dict[int, Times] = {}
        self.seen: dict[int, int] = {}
        self.last: float | None = None

    def start(self) -> None:
        """A batch begins: what lies before its first iteration's end is no measure."""
        self.last = None

    def observe(self, rows: int, tokens: int) -> None:
        """An iteration with so many tokens in its window has ended."""
        before, self.last = self.last, time.perf_counter()
        if before is not None:
            self.add(rows, tokens, self.last - before)

    def add(self, rows: int, tokens: int, seconds: float) -> None:
        """One took so long."""
        bucket = rows.bit_length()
        self.seen[bucket] = self.seen.get(bucket, 0) + 1
        self.times.setdefault(bucket, Times()).add(tokens, seconds)

    def of(self, rows: int) -> float:
        bucket = rows.bit_length()
        if self.seen.get(bucket, 0) < MEASURED:
            return self.guess
        times = self.times[bucket]
        one = times.estimate(2) - times.estimate(1)
        if one <= 0:  # tokens seem to cost nothing
            return self.guess
        return min(max(times.estimate(1) / one - 1, LEAST_COST), MOST_COST)


class DraftLength:
    """Caps drafts so that a heavily edited sentence does not pay for tokens it throws away.

    Each draft token is taken to stand with probability p, estimated per sentence and shrunk towards the mean of all
    sentences so far. A draft of K tokens then emits (1 - p^(K+1)) / (1 - p) tokens and costs c + K; the cap is the K
    with the most tokens per cost.

    Attributes:
        fixed, most: whether the length is not learned, and tokens of any draft.
        resting: drafts hardly ever stood, so none is worth its cost, not even in a batch of one sentence; the current
            batch is decoded without.
        idle: with as many rows as are left of the batch no draft is worth its cost: tokens cost what they bring.
    """

    fixed, most = False, sys.maxsize

    def __init__(self) -> None:
        self.total = Tally(PRIOR_ACCEPTED, PRIOR_REJECTED)
        self.resting, self.probing, self.rested = False, False, 0
        self.unknown = False  # nothing was ever drafted
        self.measured: StepCost | None = None

    def start(self, rows: int, device_type: str) -> None:
        """Takes up a batch of so many rows, decoded by ``kernels``, on ``cpu`` or on ``cuda``."""
        self.step_cost = STEP_COST_IN_TOKENS.get(device_type, STEP_COST_IN_TOKENS["cuda"])
        if device_type in ("kernels", "cpu"):
            self.measured = None
        else:
            self.measured = self.measured or StepCost(self.step_cost)
            self.measured.start()
            self.step_cost = self.measured.of(rows)
        unseen = self.total.seen == PRIOR_ACCEPTED + PRIOR_REJECTED
        self.unknown = unseen and rows > 1 and self.measured is None
        self.rows = [Tally() for _ in range(rows)]
        self.total.forget(MEMORY)
        pointless = worthwhile(self.mean, 1.0 + self.step_cost, 1) == 0
        self.resting = pointless and self.rested < RESTING_BATCHES
        self.probing = pointless and not self.resting
        self.rested = self.rested + 1 if self.resting else 0
        self._weigh()

    def _weigh(self) -> None:
        """Whether to draft for as many rows as there are now, by what all sentences showed."""
        rows, stands = len(self.rows), self.mean
        several = rows > 1 and not self.probing
        self.idle = several and worthwhile(stands, 1.0 + self.step_cost / rows, LONG) == 0

    def cap(self, row: int, room: int) -> int:
        """The best draft length for a row of the batch, at most ``room``."""
        if self.idle:
            return 0
        if (self.probing or self.unknown) and not self.rows[row].seen:
            return min(PROBE_LENGTH, room)
        return worthwhile(self.stands(row), self.fixed_cost, room)

    @property
    def fixed_cost(self) -> float:
        """Of an iteration beside its drafts, for each row, in drafted tokens."""
        return 1.0 + self.step_cost / len(self.rows)

    def hope(self, row: int, length: int) -> float:
        """How many tokens of a draft of so many are expected to stand."""
        stands = self.stands(row)
        return sum(stands**place for place in range(1, length + 1))

    @property
    def mean(self) -> float:
        """The chance of a draft token, of all sentences."""
        return self.total.accepted / self.total.seen

    def stands(self, row: int) -> float:
        """The chance of a row's next draft token."""
        own, mean = self.rows[row], self.mean
        return (own.accepted + PRIOR_WEIGHT_OF_ROW * mean) / (own.seen + PRIOR_WEIGHT_OF_ROW)

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Takes in so many drafts, of whatever rows."""
        for proposed, stood in zip(drafted, accepted, strict=True):
            if proposed:
                self.total.add(proposed, stood)

    def observe(
        self, drafted: Sequence[int], accepted: Sequence[int], verified: int | None = None
    ) -> None:
        """Takes in what came of an iteration: its end, of every row of the batch the draft, and how many tokens were
        verified in all, where these were more."""
        if self.measured:
            whole = sum(drafted) if verified is None else verified
            self.measured.observe(len(drafted), len(drafted) + whole)
        for row, proposed, stood in zip(self.rows, drafted, accepted, strict=True):
            if proposed:
                row.add(proposed, stood)
                self.total.add(proposed, stood)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]
        self._weigh()


class FixedDraftLength(DraftLength):
    """The same longest draft for every row and batch (``--iad-draft-length``); Algorithm 1 of Ge et al. has no limit.

    Args:
        limit: tokens; None: whatever is left of the text.
    """

    def __init__(self, limit: int | None):
        super().__init__()
        self.fixed = True
        if limit is not None:
            self.most = limit

    def start(self, rows: int, device_type: str) -> None:
        super().start(rows, device_type)
        self.resting = self.probing = False

    def _weigh(self) -> None:
        self.idle = False

    def cap(self, row: int, room: int) -> int:
        return min(self.most, room)


def worthwhile(stands: float, fixed_cost: float, room: int) -> int:
    """:func:`best_length`, 0 where that promises not as much more than none as :data:`MARGIN` asks for."""
    length = best_length(stands, fixed_cost, room)
    expected = sum(stands**place for place in range(length + 1))
    return length if expected * fixed_cost >= (1 + MARGIN) * (fixed_cost + length) else 0


def best_length(stands: float, fixed_cost: float, room: int) -> int:
    """argmax over 0 <= K <= room of expected tokens / (fixed_cost + K); it has one maximum, so the first is taken."""
    expected, gain = 1.0, 1.0
    for length in range(room):
        gain *= stands
        if gain * (fixed_cost + length) <= expected:
            return length
        expected += gain
    return room
