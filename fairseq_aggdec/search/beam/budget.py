"""Which prefixes are worth evaluating before beam search asks for them: those whose chance of being needed pays.

A call of the decoder costs as much as some ``c`` prefixes, however many it evaluates, and every prefix of it is one
more. Of R sentences with a beam of B each call takes the search one step further, which needs about B prefixes per
sentence. A prefix that was evaluated ahead and is needed then saves its share c / (R B) of a call later; one that is
not costs 1. So it is worth its while where its chance is at least 1 / (1 + c / (R B)). The chances are learned from
what became of the prefixes before, by how far behind the best hypothesis they were predicted to be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_aggdec.budget.call_cost import USUAL_OF_SEARCH
from fairseq_aggdec.budget.fading import Fading

# Prefixes per sentence and call at most: what is predicted far ahead is seldom right.
MOST = {"cpu": 80, "cuda": 256}
# How many times its cost a call with a search ahead over prefixes that are alike must save, on the mean. It saves the
# plain calls that would take the search on by as many tokens.
# CPU: the cost includes the prefixes of the call; the rest is the time of the search ahead.
# CUDA: the cost is 1, so the gain is in tokens. A call took 1.5 times as long with what the search ahead asks for on an
# H200, its wider windows and their graphs included.
LEAST_GAIN = {"cpu": 1.15, "cuda": 1.5}
PREFIXES_COUNT = {"cpu": True, "cuda": False}
# The gain that is believed at first, and the calls that this belief weighs; the weight of earlier gains, per batch.
GAIN, GAIN_WEIGHT, GAIN_FORGET = 2.0, 5.0, 0.95
# Where looking ahead does not pay, it is tried in one of LOOK_AGAIN batches. Earlier gains then fade as over FADE_AGAIN
# batches, to a half: a trial must tell whether the text has changed. Where a text is no good, its first token is looked
# at in the same batches, and so is what is foretold with most certainty.
LOOK_AGAIN, FADE_AGAIN = 32, 14
# What is not requested is looked at in one of so many calls: whether it would have been needed is known for nothing.
LEARN_AGAIN = 16
# Weight of what is believed at first, in prefixes.
PRIOR_WEIGHT = 10.0
# Why a prefix may be needed, and what is believed of it: it is of the text that a sentence begins with; it is a token
# of a text behind a copied one; it is read by the search ahead over tables
# of prefixes that are alike, or over foretold ones, by nats behind the best hypothesis (0 to 1, 1 to 2, ...).
TEXT, PIECE, ALIKE, FORETOLD = "text", "piece", "alike", "foretold"
PRIORS = {
    TEXT: (0.5,),
    PIECE: (0.9,),
    ALIKE: (0.8, 0.8, 0.8, 0.8, 0.7, 0.6, 0.5, 0.3, 0.1),
    FORETOLD: (0.7, 0.5, 0.3, 0.1),
}
# Weight of everything seen, per new observation.
FORGET = 0.998


# Why a prefix was requested before the search waited for it, and how many nats behind the best, as a whole number.
Guess = tuple[str, int]


@dataclass
class Plan:
    """What a call may evaluate ahead of the search.

    Attributes:
        most: prefixes per sentence.
        text: how many tokens of a text to draft at the beginning.
        farthest: nats behind the best hypothesis, as a whole number, up to which a prefix that is like another is worth
            it; -1: none is.
        foretold: like ``farthest``, for prefixes behind foretold tables.
        prefix_cost: what a prefix of each sentence costs beside a call, as a share of the call; 0 if not counted.
        piece: how many tokens of a text to draft wherever the search stands later.
        learn: find out what would have been needed, also where nothing is requested.
    """

    most: int
    text: int
    farthest: int
    foretold: int = -1
    prefix_cost: float = 0.0
    piece: int = 0
    learn: bool = False


NOTHING_AHEAD = Plan(0, 0, -1)


class Budget:
    """Plans the calls of a generator and learns from what came of them.

    Args:
        device_type: ``cpu`` or ``cuda``.
        beam: hypotheses per sentence.
        foretells: something foretells tables; else nothing is planned for it, as its chances are never learned.

    Attributes:
        batches: begun so far.
    """

    def __init__(self, device_type: str, beam: int, foretells: bool = False):
        self.call_cost = USUAL_OF_SEARCH.get(device_type, USUAL_OF_SEARCH["cuda"])
        self.most = MOST.get(device_type, MOST["cuda"])
        self.least_gain = LEAST_GAIN.get(device_type, LEAST_GAIN["cuda"])
        self.prefixes_count = PREFIXES_COUNT.get(device_type, PREFIXES_COUNT["cuda"])
        self.gains: dict[int, Fading] = {}
        self.beam, self.batches, self.foretells = beam, 0, foretells
        self._batch, self._size, self._calls = -1, 0, 0
        self.chances = {
            why: [Fading(FORGET, p, PRIOR_WEIGHT) for p in priors] for why, priors in PRIORS.items()
        }

    def plan(self, rows: int) -> Plan:
        """For a call of ``rows`` sentences."""
        least, trial = self._least(rows), self.trial
        self._calls += 1
        piece = self._copied(least)
        learn = self._calls % LEARN_AGAIN == 0
        foretold = -1
        if self.foretells:
            foretold = max(self._farthest(FORETOLD, least), 0 if trial else -1)
        alike = self._farthest(ALIKE, least) if self.looks else -1
        prefix_cost = rows / self.call_cost if self.prefixes_count else 0.0
        text = self.most if self._farthest(TEXT, least) == 0 else piece or int(trial)
        return Plan(self.most, text, alike, foretold, prefix_cost, piece, learn and self.looks)

    def rests(self, rows: int, texts: bool) -> bool:
        """Whether nothing is worth evaluating ahead in a batch of ``rows`` sentences, which has just begun.

        Args:
            texts: the sentences have texts.
        """
        least = self._least(rows)
        copies = texts and (self._farthest(TEXT, least) == 0 or self._copied(least) > 0)
        return not (copies or self.looks or self.foretells or (texts and self.trial))

    def _least(self, rows: int) -> float:
        """The chance from which on a prefix is worth its cost."""
        if self._batch != self.batches:  # the first call of a batch, which has all its sentences
            self._batch, self._size = self.batches, rows.bit_length()
        return 1.0 / (1.0 + self.call_cost / (rows * self.beam))

    def _copied(self, least: float) -> int:
        """How many tokens of a text are worth it: each is needed if it is a copy, as those before it are."""
        chance = self.chances[PIECE][0].mean
        if chance < least:
            return 0
        return min(
            self.most, int(math.log(least) / math.log(chance)) if chance < 1.0 else self.most
        )

    @property
    def gain(self) -> Fading:
        """What calls with a search ahead saved as a share of their cost, in batches of about this many sentences.

        Small batches draft texts, which tell the search ahead more than it knows in large ones.
        """
        if self._size not in self.gains:
            self.gains[self._size] = Fading(GAIN_FORGET, GAIN, GAIN_WEIGHT)
        return self.gains[self._size]

    @property
    def trial(self) -> bool:
        """Whether this batch tries what has not paid."""
        return self.batches % LOOK_AGAIN == 1

    @property
    def looks(self) -> bool:
        """Whether the search looks ahead over prefixes that are alike in this batch."""
        return self.pays or self.trial

    @property
    def pays(self) -> bool:
        """Whether looking ahead over prefixes that are alike saved more than it cost."""
        return self.gain.mean >= self.least_gain

    def _farthest(self, why: str, least: float) -> int:
        worth = (i for i, chance in enumerate(self.chances[why]) if chance.mean >= least)
        return max(worth, default=-1)

    def gained(self, worth: Sequence[tuple[float, float]]) -> None:
        """What the calls of a batch with a search ahead replaced, and what they cost, in plain calls."""
        if not worth:
            return
        if not self.pays:
            self.gain.fade(FADE_AGAIN)
        self.gain.add(sum(saved for saved, _ in worth), sum(cost for _, cost in worth))

    def observe(self, guess: Guess, used: bool) -> None:
        """What became of a prefix that was evaluated ahead."""
        why, gap = guess
        chances = self.chances[why]
        chances[min(gap, len(chances) - 1)].add(used)
