"""Whether to draft, decided for whole batches (``--block-size auto`` and ``--draft-nodes auto`` on a GPU).

A GPU goes on without the host until a batch has ended (:mod:`~fairseq_aggdec.decoding.device_loop`), and a wider window
costs it next to nothing. So all of a block is drafted or nothing, and what is measured are batches.
"""

import time
from collections import defaultdict
from collections.abc import Sequence, Sized

from fairseq_aggdec.decoding.block_size import CREDIT, Account
from fairseq_aggdec.decoding.times import FIRST_PATIENCE, OUTLIER, PATIENCE, Decayed

# The first batches of a kind, in which graphs are captured, are no measure.
UNMEASURED = 2
# Of a batch's time without drafts: how much faster drafting must look, and what one with drafts is believed to lose
# before any was seen, or at least.
MARGIN, GUESS, LEAST_LOSS = 0.05, 0.25, 0.05


class Kind:
    """Batches of some size with drafts, or without.

    Attributes:
        batches: how many there were.
        pace: seconds for each token of the longest output.
        lengths: tokens of the longest output.
    """

    def __init__(self) -> None:
        self.batches, self.pace, self.lengths = 0, Decayed(), Decayed()

    def add(self, seconds: float, tokens: int) -> float:
        """Remembers a batch; seconds, less where the machine did something else."""
        self.batches += 1
        if self.batches <= UNMEASURED:
            return seconds
        if self.pace.weight:
            seconds = min(seconds, OUTLIER * self.pace.mean * tokens)
        self.pace.add(seconds, tokens)
        self.lengths.add(tokens)
        return seconds


class BatchChoice:
    """All of a block, or 0 where drafting does not make batches faster: a :class:`~.block_size.BlockSize`.

    Batches of about as many sentences are compared by their time for each token of the longest output, which is what
    decoding one by one takes an iteration for. The first ones go without drafts. One sentence at a time, the next go
    with; else, and where drafting has not paid, it is tried once that is earned, as by
    :class:`~fairseq_aggdec.decoding.block_size.LearnedBlockSize`.

    Args:
        size: tokens of a block.
    """

    # The host is not to wait for the device to know its times.
    learned, resting, timing = False, False, True

    def __init__(self, size: int):
        self.largest, self.size, self.bucket = size, 0, 0
        self.account = Account()
        self.kinds: defaultdict[tuple[int, bool], Kind] = defaultdict(Kind)
        # Batches with drafts since one without was measured, and how many are enough, by size.
        self.since: defaultdict[int, int] = defaultdict(int)
        self.patience: defaultdict[int, int] = defaultdict(lambda: FIRST_PATIENCE)
        self.outputs: Sequence[Sized] = []
        self.began: float | None = None
        self.ended: float | None = None

    def start(self, outputs: Sequence[Sized]) -> None:
        self._settle()
        self.outputs, self.began, self.ended = outputs, None, None
        self.bucket = len(outputs).bit_length()
        self.size = self.largest if self._pays() else 0

    def choose(self, rows: int) -> int:
        if self.began is None:
            self.began = time.perf_counter()
        return self.size

    def passed(self) -> None:
        self.ended = time.perf_counter()

    def rest(self, seconds: float) -> None:
        pass

    def observe(self, *_: object, once: float = 0.0) -> None:
        pass

    def _settle(self) -> None:
        """Remembers the batch before, of which the outputs are known now."""
        if self.began is None or self.ended is None:
            return
        tokens = max(1, *(len(tokens) - 1 for tokens in self.outputs), 0)
        kind, plain = self.kinds[self.bucket, self.size > 0], self.kinds[self.bucket, False]
        seconds = kind.add(self.ended - self.began, tokens)
        self.since[self.bucket] = self.since[self.bucket] + 1 if self.size else 0
        if plain.pace.weight and kind.pace.weight:
            greedy = plain.pace.mean * tokens
            self.account.settle(seconds if self.size else greedy, greedy)

    def _pays(self) -> bool:
        """Whether the batch is to be drafted for."""
        plain, drafted = self.kinds[self.bucket, False], self.kinds[self.bucket, True]
        if not plain.pace.weight or self._stale():
            return False
        if 0 < drafted.batches <= UNMEASURED:
            return True  # else the try before was for nothing
        batch = plain.pace.mean * plain.lengths.mean
        credit = CREDIT * plain.pace.mean if len(self.outputs) == 1 else 0.0
        if drafted.pace.weight:
            gain = 1.0 - drafted.pace.mean / plain.pace.mean
            if gain >= MARGIN and self.account.solvent(credit):
                return True
            loss = max(-gain, LEAST_LOSS) * batch
        else:
            loss = (1 + UNMEASURED) * GUESS * batch
            if loss <= credit:
                return True
        if not self.account.affords_a_try(loss):
            return False
        self.account.tried = self.account.greedy
        return True

    def _stale(self) -> bool:
        """Whether the time without drafts is to be measured again; then later is soon enough the next time."""
        if self.since[self.bucket] < self.patience[self.bucket]:
            return False
        self.patience[self.bucket] = min(2 * self.patience[self.bucket], PATIENCE)
        return True
