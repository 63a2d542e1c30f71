"""How many tokens to draft at once: a fixed number, or as many as pay by measured times (``--draft-tokens auto``,
``--draft-tree auto``)."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass

from fairseq_aggdec.budget.call_cost import CallCost, UsualCost
from fairseq_aggdec.budget.fading import Fading

# Tokens that an iteration with a draft is believed to gain before any was seen: one is accepted.
PRIOR = 2.0
# Of the time of greedy decoding: how much drafting may lose in all, and how much tries at it may. No method may be
# slower than greedy decoding by more than measurements show.
ALLOWED, TRIES = 0.01, 0.005
# How much faster than greedy decoding drafting must look: what is measured is not exact, and one token at a time is
# slower between drafts than without any, when the weights stay in the processor's cache.
MARGIN = 0.1
# Of its time: what a try is believed to lose at least. The weights that a draft reads drive others from the caches.
LEAST_LOSS = 0.5
# One sentence at a time, where nothing was drafted before: drafts by which it is known whether they pay. And tokens of
# greedy decoding that these, and later ones that look faster and are not, may cost beyond what is allowed: a sentence.
TRIAL, CREDIT = 48, 25.0
# What an iteration is believed to cost before one with a draft was timed: beside its tokens as much as STEP of them,
# and the drafter a share of one without a draft; small models in the compiled library.
STEP, DRAFTER = 5.0, 0.7
# Of what became of drafts, the weight per new one: some 170 count. What fifty gain is off by a tenth, which is
# how much faster drafts must look: those that pay would be given up by chance.
REMEMBER = 0.994
# Tokens per iteration below which a draft cannot pay: one takes longer than that of iterations without.
LEAST_GAIN = 1.6
# Batches without drafts after which it is tried again.
RESTING_BATCHES = 31
# The largest tree where its size is learned: what costs more does not pay even where a call is waited for longest.
MOST_NODES = 64


@dataclass(frozen=True)
class NodeBudget:
    """How many tokens the tree of a row has.

    Attributes:
        most: at most this many.
        learned: as many as are worth their cost by their chances and by measured times; else always ``most``.
        branches: whether several may follow the same token; else the tree is a path.
    """

    most: int
    learned: bool = False
    branches: bool = True


class Account:
    """Says before an iteration how many tokens to draft, and is told afterwards what came of it. This one always says
    the same number.

    Args:
        size: tokens.
        cost: what iterations cost, where somebody needs to know; None: it is learned.

    Attributes:
        learned: decides by the times it is told, which must be those of all the work of an iteration.
        counts: decides by what it is told of tokens.
    """

    learned = counts = False

    def __init__(self, size: int, cost: CallCost | None = None):
        self.size, self.cost = size, cost or CallCost()

    def start(self, outputs: Sequence[Sized]) -> None:
        """Takes up a batch: the tokens of each sentence, its start symbol now, which grow while it is decoded."""

    def plan(self, rows: int) -> int:
        """Tokens to draft for each of the ``rows`` sentences that are left; 0 for none."""
        return self.size

    def batch_ended(self, gain: float) -> None:
        """A device has decoded the batch alone; ``gain`` is in tokens per iteration."""

    def observe(
        self, drafted: int, emitted: Sequence[int], seconds: float, once: float = 0.0
    ) -> None:
        """Learns from an iteration.

        Args:
            drafted: tokens in all. emitted: those that each sentence gained.
            seconds: of the iteration, of which ``once`` are the first draft's of a batch only.
        """
        self.cost.observe(len(emitted), drafted, seconds - once)


class CountedAccount(Account):
    """All of a block, or 0 in most batches where drafts hardly ever stand. No clock has a say.

    For models in half precision, where what is read beside a token decides what its products round to, so that the
    output would follow the clock; and for a GPU, which decodes batches alone.
    """

    counts = True

    def __init__(self, size: int):
        super().__init__(size, UsualCost())
        self.gained = Fading(REMEMBER)
        self.chosen, self.rested = size, 0

    def start(self, outputs: Sequence[Sized]) -> None:
        pays = self.gained.mean_with(PRIOR) >= LEAST_GAIN or self.rested == RESTING_BATCHES
        self.chosen, self.rested = (self.size, 0) if pays else (0, self.rested + 1)

    def plan(self, rows: int) -> int:
        return self.chosen

    def observe(
        self, drafted: int, emitted: Sequence[int], seconds: float, once: float = 0.0
    ) -> None:
        if drafted:
            self.gained.add(sum(emitted), len(emitted))

    def batch_ended(self, gain: float) -> None:
        if self.chosen:
            self.gained.add(gain)


class Ledger:
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
        """Whether drafts that look faster may go on: no more was lost than is allowed, and ``credit`` seconds."""
        return self.lost <= ALLOWED * self.greedy + credit

    def affords_a_try(self, loss: float) -> bool:
        """Whether a draft may be tried that is believed to lose ``loss`` seconds."""
        return self.greedy >= max(self.lost / ALLOWED, self.tried + loss / TRIES)


class LearnedAccount(Account):
    """All of a block, or 0 where drafting does not gain more tokens per second: then decoding is greedy.

    How much of a block is verified is said by the chances of its tokens, see :class:`NodeBudget`; whether a drafter is
    asked at all, by what its drafts gained and took: running means, apart for every power of two of sentences. It is
    decided for a batch, anew whenever the sentences that are left are half as many. How long a draft takes where none
    was seen is guessed in proportion from more sentences, or from what tokens cost beside an iteration.

    One sentence at a time, the first goes without drafts and the next ones with: :data:`TRIAL` drafts, as long as these
    have not cost more than :data:`CREDIT` tokens.

    What greedy decoding would have taken is known when a batch has ended. Where drafting is not believed to pay it is
    tried once in a while; these tries may lose :data:`TRIES`, and drafts that were wrongly believed to pay
    :data:`ALLOWED`, so that decoding stays as close to the speed of ``greedy``.

    Attributes:
        gained: tokens of a sentence in iterations with a draft, by power of two of sentences.
    """

    learned = True

    def __init__(self, size: int):
        super().__init__(size)
        self.gained: dict[int, Fading] = {}
        self.ledger = Ledger()
        self.tries = 0  # drafts whose outcome is known
        self.outputs: Sequence[Sized] = []  # of the batch
        self.spent, self.drafting = 0.0, False
        self.decided: dict[int, int] = {}  # for the batch
        self.chosen = 0

    def start(self, outputs: Sequence[Sized]) -> None:
        if self.outputs:
            self.ledger.settle(self.spent, self._greedy() if self.drafting else self.spent)
        self.outputs = outputs
        self.spent, self.drafting, self.decided = 0.0, False, {}
        self._count(len(outputs))

    def plan(self, rows: int) -> int:
        bucket = rows.bit_length()
        if bucket in self.decided:
            self.chosen = self.decided[bucket]
        else:
            self._count(rows)
            if self.now.plain.weight:
                self.chosen, self.decided[bucket] = self._decide(bucket)
        return self.chosen

    def _count(self, rows: int) -> None:
        """``rows`` sentences are left; nothing is drafted for them yet."""
        self.bucket, self.now, self.chosen = rows.bit_length(), self.cost.line(rows), 0
        self.gained.setdefault(self.bucket, Fading(REMEMBER))

    def observe(
        self, drafted: int, emitted: Sequence[int], seconds: float, once: float = 0.0
    ) -> None:
        drafted = drafted if self.chosen else 0
        if drafted:
            self.drafting = True
            self.tries += 1
            self.gained[self.bucket].add(sum(emitted), len(emitted))
        taken = self.cost.observe(len(emitted), drafted, seconds - once)
        if taken is not None:
            self.spent += taken + once
        elif drafted:
            self.spent += seconds

    def _decide(self, bucket: int) -> tuple[int, int]:
        """Tokens for the next iteration with such a number of sentences, and for the ones after it in this batch."""
        plain, most = self.now.plain.mean, self.size
        if self.now.patience.ends():
            # Measured on a whole batch: the first iteration of one takes longer than the others.
            return 0, 0
        seconds, gain = self._expected(bucket)
        loss = seconds - gain * plain
        # One sentence whose drafts do not stand, or a machine that slows down, is no reason to stop.
        credit = CREDIT * plain if len(self.outputs) == 1 else 0.0
        if loss <= -MARGIN * seconds and self.ledger.solvent(credit):
            return most, most
        if credit and self.tries < TRIAL and self.ledger.lost + max(0.0, loss) <= credit:
            return most, most
        loss = max(loss, LEAST_LOSS * seconds)
        if self.ledger.affords_a_try(loss):
            self.ledger.tried = self.ledger.greedy
            return most, 0
        return 0, 0

    def _expected(self, bucket: int) -> tuple[float, float]:
        """Seconds of an iteration with a draft, and the tokens that a sentence gains in it."""
        plain = self.now.plain.mean
        # A draft for fewer sentences takes less; one for more may take more than in proportion.
        seen = [other for other, line in self.cost.lines.items() if other >= bucket and line.seen]
        near = min(seen, default=bucket)
        gained = self.gained[near].mean_with(PRIOR)
        if not seen:
            # The few that are left of a batch get no cheaper tries: these are best spent on all of it.
            wider = len(self.outputs) / (STEP + len(self.outputs))
            return (1 + DRAFTER + wider * self.size) * plain, gained
        line = self.cost.lines[near]
        scale = 1.0 if near == bucket else plain / line.plain.mean
        return scale * max(line.t.mean, line.plain.mean), gained

    def _greedy(self) -> float:
        """Seconds that the batch would have taken without drafts: one iteration per token of its longest sentence."""
        known = {
            bucket: line.plain.mean for bucket, line in self.cost.lines.items() if line.plain.weight
        }
        longest_first = sorted((len(tokens) - 1 for tokens in self.outputs), reverse=True)
        seconds = 0.0
        for alive, (length, next_length) in enumerate(
            zip(longest_first, [*longest_first[1:], 0], strict=True), start=1
        ):
            nearest = min(known, key=lambda bucket: abs(bucket - alive.bit_length()))
            seconds += (length - next_length) * known[nearest]
        return seconds
