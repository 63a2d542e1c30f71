"""The decoding loop on a GPU: an iteration is one captured graph, launched before the host knows the last result.

An iteration does what one of :mod:`~fairseq_aggdec.search.compiled.windows` does, on the
:class:`~fairseq_aggdec.search.board.Board`. The host only needs to know which sentences have ended and how long the
others are. It reads that after each iteration, or one iteration later if reading would keep the device waiting
(:class:`~fairseq_aggdec.budget.pace.Pace`); then one iteration at the end of the batch is in vain. Only this choice
depends on measured times. The shapes of windows depend on the results of earlier iterations.

The output is that of the plain loop; tests compare the two.
"""

import functools
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fairseq_aggdec.budget.pace import Pace
from fairseq_aggdec.engine.graphs.capture import CapturedSizes
from fairseq_aggdec.engine.graphs.window_graphs import GraphMemory, grid_end, grid_rows
from fairseq_aggdec.kernels.gpu.logits import RuledTokens
from fairseq_aggdec.options.stopping import check
from fairseq_aggdec.search.board import Shape
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.state import remaining
from fairseq_aggdec.windows.transfer import PendingCopy
from fairseq_aggdec.windows.window import DecoderOutput, Window


@dataclass(frozen=True)
class Launched:
    """An iteration under way: its sentences, when it was launched, and the flags that are copied to the host."""

    sentences: Sequence[int]
    at: float
    positions: PendingCopy


class DeviceReader(Protocol):
    """Reads the windows of a batch on the device: a verifier, or a drafter that is trusted.

    Attributes:
        temperature: divides the logits.
        captures: whole iterations of the batch can be captured.
        head_input: width of the features that a drafter may read, and a weight with their device and dtype.
    """

    temperature: float

    @property
    def captures(self) -> bool: ...

    @property
    def head_input(self) -> tuple[int, Tensor]: ...

    def rooms(self, end: int, longest: int) -> list[GraphMemory]:
        """The memory that is captured beside that of a drafter, when there is room for ``end`` keys of a row."""

    def read(
        self, window: Window, in_fp32: bool = True, symbols: RuledTokens | None = None
    ) -> DecoderOutput: ...

    def keep_rows(self, rows: Sequence[int]) -> None: ...


class AheadLoop(ABC):
    """Decodes batches, one after the other, in iterations that a subclass makes of the operators of a device.

    Args:
        reader: reads the windows.

    Attributes:
        longest: positions that a sentence of the batch may have.
    """

    longest: int

    def __init__(self, reader: DeviceReader):
        self.reader = reader
        self.timing_valid = True  # nothing was captured since the host was told of an iteration
        self.paces: defaultdict[tuple[int, bool], Pace] = defaultdict(Pace)
        self.graphs = CapturedSizes()
        self._drop()

    def _drop(self) -> None:
        """Drops all captured graphs."""
        self.graphs.forget()
        # What was captured reads and writes: batches for which nothing is drafted do not have the drafter's memory.
        self.bound: dict[int, list[tuple[GraphMemory, int]]] = {}

    @property
    @abstractmethod
    def flags(self) -> Tensor:
        """(S,) int64, of the rows of the grid: the position of the last token, or its complement where the sentence
        has ended."""

    @abstractmethod
    def _step(self, shape: Shape) -> Tensor:
        """One iteration on the device; no launch depends on the numbers there. Returns ``flags``."""

    def _run(self, count: int, size: int, counters: Counters) -> int:
        """Launches iterations until ``count`` sentences have ended, ``size`` tokens being drafted in each; returns how
        many it took. One more may have been launched, in vain."""
        self.ends: dict[int, int] = {}  # the last positions of the sentences that have ended
        sentences: Sequence[int] = range(count)
        pace, calls = self.paces[grid_rows(count), size > 0], counters.calls
        pace.waits = self.flags.device.type != "cpu"
        pending: deque[Launched] = deque()
        # of iterations, to shape the windows of later ones
        outcomes: deque[dict[int, int]] = deque()
        reach, before, ahead = 1, None, pace.ahead
        now = time.perf_counter()
        while sentences:
            check()
            unknown = len(pending) + len(outcomes)
            end = min(self.longest, reach + (size + 1) * (unknown + 1))
            self._launch(sentences, size, end)
            copied = PendingCopy(self.flags[: len(sentences)])
            launched = time.perf_counter()
            if self.timing_valid:
                pace.launched(launched - now)
            now = launched
            pending.append(Launched(sentences, launched, copied))
            counters.calls += 1
            if len(pending) > ahead:
                known = pending.popleft()
                positions = dict(zip(known.sentences, known.positions.read(), strict=True))
                now, valid, self.timing_valid = time.perf_counter(), self.timing_valid, True
                if valid and before:
                    pace.passed(now - max(before, known.at))
                before = now
                self.ends |= {row: ~position for row, position in positions.items() if position < 0}
                outcomes.append(positions)
                if max(positions.values()) < 0:
                    sentences = []
                elif ahead or len(outcomes) > 1:
                    positions = outcomes.popleft()
                    reach = 1 + max(max(position, ~position) for position in positions.values())
                    sentences = self._left(sentences, [positions[i] >= 0 for i in sentences])
        in_vain = len(pending)  # nobody waits for what they tell
        counters.calls -= in_vain
        counters.in_vain += in_vain
        pace.ended(counters.calls - calls)
        return counters.calls - calls

    def _launch(self, sentences: Sequence[int], size: int, end: int) -> None:
        """Launches an iteration of the given sentences, of which none has more than ``end`` positions."""
        shape = self._shape(len(sentences), size, end)
        rooms, captures = self.reader.rooms(shape.end, self.longest), self.reader.captures
        if captures:  # sizes in steps
            shape = Shape(grid_rows(shape.rows), shape.width, grid_end(shape.end))
        rooms += self._made_ready(sentences, shape)
        step = functools.partial(self._step, shape)
        key = *shape, self.reader.temperature, *(room.sources for room in rooms)
        if not captures:
            step()
            return
        bound = [(room, room.generation) for room in rooms]
        if self.bound.get(len(bound), bound) != bound:
            self._drop()
        self.bound[len(bound)] = bound
        if self.graphs.advance(key, step, self.flags.device):
            self.timing_valid = False

    def _shape(self, rows: int, size: int, end: int) -> Shape:
        return Shape(rows, size + 1, end)

    def _made_ready(self, sentences: Sequence[int], shape: Shape) -> Sequence[GraphMemory]:
        """Prepares an iteration of sentences on a grid; returns the memory of what drafts."""
        return ()

    def _left(self, sentences: Sequence[int], alive: Sequence[bool]) -> Sequence[int]:
        """The sentences that go on, each in the row of its place: as they are until a smaller grid has room for all."""
        count = sum(alive)
        if count and grid_rows(count) >= len(sentences):
            return sentences
        keep = remaining(alive)
        if not count or keep is None:
            return sentences if count else []
        self._keep_rows(keep)
        return [sentences[row] for row in keep]

    def _keep_rows(self, rows: Sequence[int]) -> None:
        self.reader.keep_rows(rows)
