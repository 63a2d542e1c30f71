"""How many tokens to draft at once: a fixed number, or as many as are worth their cost by measured times, if drafting
has paid of late at all (``--block-size auto``, ``--draft-nodes auto``)."""

import math
from collections.abc import Sequence, Sized
from typing import Protocol

from fairseq_aggdec.budget.times import OUTLIER, Decayed, IterationClock, Times
from fairseq_aggdec.windows.draft import Verdict

# Tokens that an iteration with a draft is believed to gain before any was seen.
PRIOR = 2.0
# Of the time of greedy decoding: how much drafting may lose in all, and how much tries at it may.
ALLOWED, TRIES = 0.01, 0.005
# How much faster than greedy decoding drafting must look: what is measured is not exact, and one token at a time is
# slower between drafts than without any, when the weights stay in the processor's cache.
MARGIN = 0.1
# Iterations of a rest whose time is measured: not the first ones, which find the caches full of something else.
TIMED_RESTS = range(3, 7)
# Of its time: what a try is believed to lose at least. The weights that a draft reads drive others from the caches.
LEAST_LOSS = 0.5
# One sentence at a time, where nothing was drafted before: drafts by which it is known whether they pay. And tokens of
# greedy decoding that these, and later ones that look faster and are not, may cost beyond what is allowed.
TRIAL, CREDIT = 48, 25.0
# What an iteration is believed to cost before one with a draft was timed: beside its tokens as much as so many of them,
# and the drafter a share of one without a draft.
STEP, DRAFTER = 5.0, 0.7
# Of what became of drafts, the weight per new one: some 170 count. What fifty gain is off by a tenth, which is
# how much faster drafts must look: those that pay would be given up by chance.
REMEMBER = 0.994
# The largest tree where its size is learned.
MOST_NODES = 64
# Iterations after which measured times of trees are believed.
MEASURED = 40


class BlockSize(Protocol):
    """Chooses k before an iteration and is told afterwards what it brought.

    Attributes:
        learned: from the times it is told, which must be those of all the work of an iteration then.
        resting: no draft is chosen as long as so many sentences are left: of an iteration only its time is asked for.
        timing: that, too, is asked for.
    """

    learned: bool
    resting: bool
    timing: bool

    def start(self, outputs: Sequence[Sized]) -> None:
        """Takes up a batch: the tokens of each sentence, its start symbol now, which grow while it is decoded."""

    def choose(self, rows: int) -> int:
        """Tokens to draft for each of the ``rows`` sentences that are left; 0 for none."""

    def passed(self) -> None:
        """An iteration has ended."""

    def batch_ended(self, clean: bool, gain: float) -> None:
        """All of a batch has ended, on a device that goes on alone, see
        :class:`~fairseq_aggdec.search.drafter.DeviceDrafter`."""

    def rest(self, seconds: float) -> None:
        """An iteration without a draft, while ``resting``, took so long, which counts while ``timing`` only."""

    def observe(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        emitted: Sequence[int],
        seconds: float,
        once: float = 0.0,
    ) -> None:
        """What became of the last choice.

        Args:
            drafted, accepted, emitted: tokens of each sentence that is left.
            seconds: the time of the iteration, on CPU that of the thread that decodes.
            once: the part of it that only the first draft of a batch takes.
        """


def learn(size: BlockSize, verdict: Verdict, seconds: float, once: float = 0.0) -> None:
    """Tells a block size what became of its last choice; arguments as for :meth:`BlockSize.observe`."""
    if size.learned:
        emitted = [len(tokens) for tokens in verdict.emitted]
        size.observe(verdict.drafted, verdict.accepted, emitted, seconds, once=once)


def lasted(size: BlockSize, clock: IterationClock, verdict: Verdict) -> float | None:
    """Seconds of the iteration that has ended, None where nothing is to be learned from its draft; rests are told."""
    size.passed()
    if not size.timing:
        clock.last = None
        size.rest(0.0)
        return None
    seconds = clock.end()
    if not verdict.own:
        return None
    if seconds is not None and size.resting:
        size.rest(seconds)
        return None
    return seconds


class FixedBlockSize:
    """Always the same k."""

    learned, resting, timing = False, False, True

    def __init__(self, size: int):
        self.size = size

    def start(self, outputs: Sequence[Sized]) -> None:
        pass

    def choose(self, rows: int) -> int:
        return self.size

    def passed(self) -> None:
        pass

    def batch_ended(self, clean: bool, gain: float) -> None:
        pass

    def rest(self, seconds: float) -> None:
        pass

    def observe(self, *_: object, once: float = 0.0) -> None:
        pass


class Account:
    """What drafting has lost against greedy decoding, settled batch by batch.

    Attributes:
        lost: seconds that drafting took more than greedy decoding would have, since it was last ahead.
        greedy: seconds that greedy decoding would have taken for everything.
        tried: ``greedy`` when a draft that would probably not pay was last tried.
    """

    def __init__(self) -> None:
        self.lost = self.greedy = self.tried = 0.0

    def settle(self, spent: float, greedy: float) -> None:
        self.lost = max(0.0, self.lost + spent - greedy)
        self.greedy += greedy

    def solvent(self, credit: float) -> bool:
        """Whether drafts that look faster may go on: no more was lost than is allowed, and so many seconds."""
        return self.lost <= ALLOWED * self.greedy + credit

    def affords_a_try(self, loss: float) -> bool:
        """Whether a draft may be tried that is believed to lose so many seconds: earned since the last one."""
        return self.greedy >= self.try_at(loss)

    def try_at(self, loss: float) -> float:
        """From which ``greedy`` on it may be tried."""
        return max(self.lost / ALLOWED, self.tried + loss / TRIES)


class Kind:
    """What is known of iterations with some number of sentences.

    Attributes:
        times: of those with a draft and without.
        gained: tokens of a sentence in those with a draft.
    """

    def __init__(self) -> None:
        self.times, self.gained = Times(), Decayed(REMEMBER)


class LearnedBlockSize:
    """The largest k, or 0 where drafting does not gain more tokens per second: then decoding is greedy.

    How much of a block is verified is said by the chances of its tokens, see :class:`NodeBudget`; whether a drafter is
    asked at all, by what its drafts gained and took: running means, apart for every power of two of sentences. It is
    decided for a batch, anew whenever the sentences that are left are half as many. How long a draft takes where none
    was seen is guessed in proportion from more sentences, or from what tokens cost beside an iteration.

    One sentence at a time, the first goes without drafts and the next ones with: :data:`TRIAL` drafts, as long as these
    have not cost more than :data:`CREDIT` tokens.

    What greedy decoding would have taken is known when a batch has ended. Where drafting is not believed to pay it is
    tried once in a while; these tries may lose :data:`TRIES`, and drafts that were wrongly believed to pay
    :data:`ALLOWED`, so that decoding stays as close to the speed of ``greedy``.

    Args:
        largest: k, at least 1.
    """

    learned = True

    def __init__(self, largest: int):
        self.largest = largest
        self.kinds: dict[int, Kind] = {}
        # The first iteration of each kind, without and with a draft, lays out weights and is no measure.
        self.unmeasured = {False, True}
        self.account = Account()
        self.tries = 0  # drafts whose outcome is known
        self.outputs: Sequence[Sized] = []  # of the batch
        self.spent, self.drafting = 0.0, False
        self.plan: dict[int, int] = {}  # what was decided for the batch
        # What ``account.greedy`` must be before a draft is thought of.
        self.again: dict[int, float] = {}
        self.chosen, self.resting, self.timing = 0, False, True
        # Iterations while ``resting``, remembered together: each takes little longer than one of greedy decoding, and
        # looking at the clock is part of that.
        self.rests = 0
        self.rested: list[float] = []

    def start(self, outputs: Sequence[Sized]) -> None:
        self._end_rest()
        if self.outputs:
            self.account.settle(self.spent, self._greedy() if self.drafting else self.spent)
        self.outputs = outputs
        self.spent, self.drafting, self.plan = 0.0, False, {}
        self._count(len(outputs))

    def choose(self, rows: int) -> int:
        bucket = rows.bit_length()
        if self.resting and bucket == self.bucket:
            return 0
        if bucket not in self.plan:
            self._end_rest()
            self._count(rows)
            if not self.now.times.plain.weight:
                return 0
            if self.account.greedy >= self.again.get(bucket, 0.0):
                self.chosen, self.plan[bucket] = self._decide(bucket)
                return self.chosen
            self.plan[bucket] = 0
        if not self.resting:
            self.chosen = self.plan[bucket]
            self.resting = self.chosen == 0
            self.timing = not self.resting
        return self.chosen

    def _count(self, rows: int) -> None:
        """So many sentences are left; nothing is drafted for them yet."""
        self.bucket = bucket = rows.bit_length()
        if bucket not in self.kinds:
            self.kinds[bucket] = Kind()
        self.now = self.kinds[bucket]
        self.chosen, self.resting = 0, False

    def passed(self) -> None:
        pass

    def batch_ended(self, clean: bool, gain: float) -> None:
        pass

    def rest(self, seconds: float) -> None:
        if self.timing:
            self.rested.append(min(seconds, OUTLIER * self.now.times.plain.mean))
        self.rests += 1
        self.timing = self.rests in TIMED_RESTS

    def _end_rest(self) -> None:
        self.timing = True
        if self.rested:
            self.now.times.add_plain(sum(self.rested), len(self.rested))
        self.spent += self.rests * self.now.times.plain.mean if self.rests else 0.0
        self.rests, self.rested = 0, []

    def observe(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        emitted: Sequence[int],
        seconds: float,
        once: float = 0.0,
    ) -> None:
        size = self.chosen if any(drafted) else 0
        if size:
            self.drafting = True
            self.tries += 1
            self.now.gained.add(sum(emitted), len(emitted))
        if bool(size) in self.unmeasured:
            self.unmeasured.remove(bool(size))
            self.spent += seconds if size else 0.0
            return
        self.spent += self.now.times.add(size, seconds - once) + once

    def _decide(self, bucket: int) -> tuple[int, int]:
        """k for the next iteration with such a number of sentences, and for the ones after it in this batch."""
        times, most = self.now.times, self.largest
        if times.grows_stale():
            # Measured on a whole batch: the first iteration of one takes longer than the others.
            return 0, 0
        seconds, gain = self._expected(bucket)
        loss = seconds - gain * times.plain.mean
        # One sentence whose drafts do not stand, or a machine that slows down, is no reason to stop.
        credit = CREDIT * times.plain.mean if len(self.outputs) == 1 else 0.0
        if loss <= -MARGIN * seconds and self.account.solvent(credit):
            return most, most
        if credit and self.tries < TRIAL and self.account.lost + max(0.0, loss) <= credit:
            return most, most
        loss = max(loss, LEAST_LOSS * seconds)
        if self.account.affords_a_try(loss):
            self.account.tried = self.account.greedy
            return most, 0
        self.again[bucket] = self.account.try_at(loss)
        return 0, 0

    def _expected(self, bucket: int) -> tuple[float, float]:
        """Seconds of an iteration with a draft, and the tokens that a sentence gains in it."""
        own, most = self.now.times, self.largest
        # A draft for fewer sentences takes less; one for more may take more than in proportion.
        seen = [b for b, kind in self.kinds.items() if b >= bucket and kind.times.k.weight]
        near = self.kinds[min(seen)] if seen else self.now
        gained = near.gained.mean_with(PRIOR)
        if not seen:
            # The few that are left of a batch get no cheaper tries: these are best spent on all of it.
            wider = len(self.outputs) / (STEP + len(self.outputs))
            return (1 + DRAFTER + wider * most) * own.plain.mean, gained
        scale = 1.0 if near is self.now else own.plain.mean / near.times.plain.mean
        return scale * near.times.estimate(most), gained

    def _greedy(self) -> float:
        """Seconds that the batch would have taken without drafts: one iteration per token of its longest sentence."""
        known = {
            bucket: kind.times.plain.mean
            for bucket, kind in self.kinds.items()
            if kind.times.plain.weight
        }
        longest_first = sorted((len(tokens) - 1 for tokens in self.outputs), reverse=True)
        seconds = 0.0
        for alive, (length, next_length) in enumerate(
            zip(longest_first, [*longest_first[1:], 0], strict=True), start=1
        ):
            nearest = min(known, key=lambda bucket: abs(bucket - alive.bit_length()))
            seconds += (length - next_length) * known[nearest]
        return seconds


class NodeBudget:
    """How many tokens a tree has.

    Args:
        most: at most so many.
        learned: as many as are worth their cost by their chances to stand and by the measured times of iterations;
            else always ``most``.
        branches: whether some may follow the same token; else the tree is a path.
    """

    def __init__(self, most: int, learned: bool = False, branches: bool = True):
        self.most, self.learned, self.branches = most, learned, branches
        self.times: dict[int, Times] = {}
        self.seen: dict[int, int] = {}

    def fixed_cost(self, rows: int, guess: float) -> float:
        """Of an iteration with so many rows, for each of them, in drafted tokens; ``guess`` until it was measured."""
        if not self.learned:
            return math.inf
        bucket = rows.bit_length()
        if self.seen.get(bucket, 0) >= MEASURED:
            times = self.times[bucket]
            one = times.estimate(2) - times.estimate(1)
            fixed = times.estimate(1) - one
            guess = min(max(fixed / max(one, 1e-9), guess / 4), 16 * guess)
        return guess / rows

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """An iteration with so many drafted tokens in all took so long."""
        bucket = rows.bit_length()
        self.seen[bucket] = self.seen.get(bucket, 0) + 1
        if self.learned and tokens and self.seen[bucket] > 1:  # the first lays out weights
            self.times.setdefault(bucket, Times()).add(tokens, seconds)
