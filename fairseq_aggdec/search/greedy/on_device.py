"""Greedy search on a GPU, iteration by iteration without the host; see :mod:`~fairseq_aggdec.search.ahead`."""

import itertools
import operator
from collections.abc import Sequence

from torch import Tensor

from fairseq_aggdec.engine.graphs.window_graphs import GraphMemory, grid_end, grid_rows
from fairseq_aggdec.search.acceptance import Acceptance, trusting
from fairseq_aggdec.search.ahead import AheadLoop, DeviceReader
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import DeviceDrafter
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.search.verification import fused
from fairseq_aggdec.windows.draft import BatchVerdict
from fairseq_aggdec.windows.grid import GridWindow
from fairseq_aggdec.windows.transfer import send_into


class DeviceLoop(AheadLoop):
    """Greedy decoding, drafted or not.

    Args:
        reader: reads the windows: a verifier, or the drafter where ``accept`` trusts it.
        drafter: drafts on the device. accept: which drafted tokens are accepted. rules: generation options.
    """

    def __init__(
        self, reader: DeviceReader, drafter: DeviceDrafter, accept: Acceptance, rules: Rules
    ):
        super().__init__(reader)
        self.drafter, self.accept, self.rules = drafter, accept, rules
        self.board: Board | None = None

    @property
    def flags(self) -> Tensor:
        assert self.board is not None
        return self.board.flags

    def decode(self, state: DecodeState, size: int, counters: Counters) -> None:
        """Decodes every row of ``state`` to its end (in place), ``size`` tokens being drafted in an iteration."""
        board = self._take_up(state, size)
        self.longest = max(row.end for row in state.rows) + 1
        self._run(len(state.rows), size, counters)
        lengths = [self.ends[row] for row in range(len(state.rows))]
        tokens, scores, *by_iteration = board.outcomes(lengths)
        state.finish(tokens, scores, [len(emitted) for emitted in by_iteration[0]])
        emitted, drafted, accepted = (list(itertools.chain(*numbers)) for numbers in by_iteration)
        if not size:
            drafted = accepted = [0] * len(emitted)
        counters.add_all(emitted, drafted, accepted)
        self.drafter.observe_batch(BatchVerdict(drafted, accepted, emitted))

    def _take_up(self, state: DecodeState, size: int) -> Board:
        """Puts a batch on the board, on a new one where it has no place on the last."""
        rows, (features, like) = state.rows, self.reader.head_input
        # Behind the longest output there is room for its </s> and for what is not kept.
        length = grid_end(max(row.end for row in rows) + 3)
        prefix = max(len(row.prefix) for row in rows)
        wanted = grid_rows(len(rows)), length
        features = features if self.drafter.reads_features else 0
        kind = prefix, features, like.device, like.dtype
        board = self.board
        if board is None or board.kind != kind or any(map(operator.lt, board.room, wanted)):
            if board is not None and board.kind == kind:
                wanted = max(wanted[0], board.room[0]), max(wanted[1], board.room[1])
            board = Board(wanted, *kind, pad=self.rules.pad)
            self.board = board
            self.books = fused.bookkeeping(self.rules, self.accept, like.device)
            self._drop()
            self.owning: Sequence[int] = ()
        board.set(rows)
        return board

    def _made_ready(self, sentences: Sequence[int], shape: Shape) -> Sequence[GraphMemory]:
        self._own(sentences, shape.rows)
        return self.drafter.reserve(shape) if shape.width > 1 else ()

    def _own(self, sentences: Sequence[int], rows: int) -> None:
        """Says on the device which sentences the rows of the grid decode."""
        assert self.board is not None
        nobody = self.board.room[0]
        owning = [*sentences, *[nobody] * (rows - len(sentences))]
        if owning != self.owning:
            send_into(self.board.owners[:rows], owning)
            self.owning = owning

    def _keep_rows(self, rows: Sequence[int]) -> None:
        super()._keep_rows(rows)
        if self.accept is not trusting:  # else it is the reader
            self.drafter.keep_rows(rows)

    def _step(self, shape: Shape) -> Tensor:
        """One iteration on the device, from the board to the board; no launch depends on the numbers there."""
        board = self.board
        assert board is not None
        iterate = self._trust if self.accept is trusting else self._verify
        iterate(board, board.rows(board.owners[: shape.rows]), shape)
        return board.flags

    def _verify(self, board: Board, rows: Rows, shape: Shape) -> None:
        drafter, block = self.drafter, None
        if shape.width > 1:
            block = drafter.block(board, rows.owners, rows, shape)
        slots = self.books.begin(board, rows, block, drafter)
        window = GridWindow(slots.tokens.flatten(), slots.outputs.flatten(), shape, reach=0)
        output = self.reader.read(window, in_fp32=False, symbols=self.books.symbols)
        features = output.features[0] if block is not None and drafter.reads_features else None
        self.books.end(board, rows, slots, output.logits, features, parts=output.parts)

    def _trust(self, board: Board, rows: Rows, shape: Shape) -> None:
        count, size = len(rows.owners), shape.width - 1
        logits = self.drafter.logits_on_device(board, rows.owners, rows, shape).flatten(0, 1)
        if self.reader.temperature != 1.0:
            logits = logits.float().div_(self.reader.temperature)  # (R k, V)
        # Padding, which is in no output, for what is not known: it repeats no n-gram.
        unknown = rows.owners.new_full((count, size - 1), self.rules.pad)
        slots = self.books.begin(board, rows, unknown, self.drafter)
        slots = slots._replace(length=rows.owners.new_full((count,), size))
        self.books.end(board, rows, slots, logits, None)
