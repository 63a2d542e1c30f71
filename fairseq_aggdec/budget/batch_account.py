"""Whether to draft, decided for whole batches (``--draft-tokens auto`` and ``--draft-tree auto`` on a GPU).

A GPU goes on without the host until a batch has ended (:mod:`~fairseq_aggdec.search.ahead`), and a wider window
costs it next to nothing. So all of a block is drafted or nothing, and what is measured are batches.
"""

import statistics
import time
from collections import defaultdict, deque
from collections.abc import Sequence, Sized

from fairseq_aggdec.budget.account import CREDIT, LEAST_GAIN, Account, Ledger
from fairseq_aggdec.budget.call_cost import OUTLIER, Patience

# Batches of a kind that are remembered, and by how many it is known: one in which the machine did something else
# decides nothing, as medians are compared.
REMEMBERED, KNOWN_FROM = 5, 3
# Of a batch's time without drafts: how much faster drafting must look, and what one with drafts is believed to lose
# before any was seen, and at least. Batches are measured more exactly than iterations.
MARGIN, GUESS, LEAST_LOSS = 0.05, 0.1, 0.05
# Where nobody says which batches are a measure, those behind the first ones are: by then all is made that is kept.
UNMEASURED = 2


class Batches:
    """Batches of some size with drafts, or without.

    Attributes:
        count: of all.
        paces: seconds for each token of the longest output, of the last ones that were a measure.
        lengths: tokens of the longest output of those batches.
    """

    def __init__(self) -> None:
        self.count = 0
        self.paces: deque[float] = deque(maxlen=REMEMBERED)
        self.lengths: deque[int] = deque(maxlen=REMEMBERED)

    @property
    def known(self) -> bool:
        return len(self.paces) >= KNOWN_FROM

    @property
    def pace(self) -> float:
        return statistics.median(self.paces)

    @property
    def seconds(self) -> float:
        """What a batch takes."""
        return self.pace * statistics.mean(self.lengths)


class BatchAccount(Account):
    """All of a block, or 0 where drafting does not make batches faster.

    Batches of about as many sentences are compared by their time for each token of the longest output, which is what
    decoding one by one takes an iteration for. The first ones go without drafts. One sentence at a time, the next go
    with; else, and where drafting has not paid, it is tried once that is earned, as by
    :class:`~fairseq_aggdec.budget.account.LearnedAccount`. The host does not wait for the device to know its times, so
    no iteration is timed.
    """

    def __init__(self, size: int):
        super().__init__(size)
        self.chosen, self.bucket = 0, 0
        self.ledger = Ledger()
        self.kinds: defaultdict[tuple[int, bool], Batches] = defaultdict(Batches)
        self.patience: defaultdict[int, Patience] = defaultdict(Patience)  # by size
        self.outputs: Sequence[Sized] = []
        self.began: float | None = None
        self.finished: float | None = None

    def start(self, outputs: Sequence[Sized]) -> None:
        self._settle()
        self.outputs, self.began, self.finished = outputs, None, None
        self.clean: bool | None = None
        self.gain = LEAST_GAIN
        self.bucket = len(outputs).bit_length()
        self.chosen = self.size if self._pays() else 0

    def plan(self, rows: int) -> int:
        if self.began is None:
            self.began = time.perf_counter()
        return self.chosen

    def passed(self) -> None:
        self.finished = time.perf_counter()

    def batch_ended(self, clean: bool, gain: float) -> None:
        self.passed()
        self.clean, self.gain = clean, gain

    def _settle(self) -> None:
        """Remembers the batch before, of which the outputs are known now."""
        if self.began is None or self.finished is None:
            return
        kind, plain = self.kinds[self.bucket, self.chosen > 0], self.kinds[self.bucket, False]
        kind.count += 1
        patience = self.patience[self.bucket]
        patience.since = patience.since + 1 if self.chosen else 0
        tokens = max([1, *(len(output) - 1 for output in self.outputs)])  # but for the start symbol
        seconds = self.finished - self.began
        hopeless = self.chosen > 0 and self.gain < LEAST_GAIN
        if hopeless or (kind.count > UNMEASURED if self.clean is None else self.clean):
            # What cannot pay is known by one, also where graphs were captured.
            kind.paces.extend([seconds / tokens] * (KNOWN_FROM if hopeless else 1))
            kind.lengths.append(tokens)
        if plain.known and kind.known:
            greedy = plain.pace * tokens
            spent = min(seconds, OUTLIER * kind.pace * tokens)
            self.ledger.settle(spent if self.chosen else greedy, greedy)

    def _pays(self) -> bool:
        """Whether the batch is to be drafted for."""
        plain, drafted = self.kinds[self.bucket, False], self.kinds[self.bucket, True]
        if not plain.known or self.patience[self.bucket].ends():
            return False
        if drafted.count and not drafted.known:
            return True  # else the tries before were for nothing
        if drafted.known:
            gain = 1.0 - drafted.pace / plain.pace
            if gain >= MARGIN:
                return True
            loss = max(-gain, LEAST_LOSS) * plain.seconds
        else:
            loss = GUESS * plain.seconds
            if len(self.outputs) == 1 and loss <= CREDIT * plain.pace:
                return True
            loss *= KNOWN_FROM
        if not self.ledger.affords_a_try(loss):
            return False
        self.ledger.tried = self.ledger.greedy
        return True
