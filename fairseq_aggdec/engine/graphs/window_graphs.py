"""The window step as captured graphs: on a GPU a call of the decoder is one launch, whatever its window holds.

A window is laid out on a grid (:mod:`fairseq_aggdec.windows.grid`) of one of a few sizes. For each size that comes a
second time the step is captured, over memory that stays where it is from batch to batch (:class:`Room`). The first time
it runs on the same grid, so that products round alike whatever was decoded before. Windows of other kinds run as they
are, over the same memory, so both may follow each other in a batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fairseq_aggdec.engine.graphs.capture import CapturedSizes
from fairseq_aggdec.windows.grid import WORD, GridTree, GridWindow, bits_seen, laid_out
from fairseq_aggdec.windows.transfer import send_into
from fairseq_aggdec.windows.tree_window import TreeWindow
from fairseq_aggdec.windows.window import Window

# Few rows wait for the weights, so that rows which are too many cost nothing; many wait for the arithmetic.
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
WIDTHS = (1, 2, 4, 8, 12, 16, 32, 64)
SHORTEST = WORD  # keys of the smallest cache or source; sizes double from here
# How much more memory than the batch needs is kept so that batches of other sizes find their graphs.
SPARE = 4


class KeysValues(NamedTuple):
    """Keys and values that a step works on.

    Attributes:
        cache: (layers, B, capacity, 2C), written in place.
        memory: of each layer those of the source, (B, S, 2C), and what else is read of it.
        memory_mask: additive, (B, 1, 1, S); None: the sources are equally long.
    """

    cache: Tensor
    memory: Sequence[Tensor]
    memory_mask: Tensor | None


class GridSize(NamedTuple):
    """Size of a captured step.

    Attributes:
        rows, width: R rows of W slots.
        end: keys of the cache that a slot may see.
        sources: keys of a source.
        tree: the windows are trees.
    """

    rows: int
    width: int
    end: int
    sources: int
    tree: bool = False

    @property
    def places(self) -> int:
        """Keys of all rows."""
        return self.rows * (self.end + self.sources)


# What is read at each position, tokens (N,) or vectors (N, C), the window and its keys -> features (N, C).
Run = Callable[[Tensor, GridWindow, KeysValues], Tensor]


class Room:
    """Memory for the keys and values of any batch that is no larger.

    Args:
        size: ``rows``, ``end`` and ``sources`` say how much there is room for.
        like: (layers, 2C), has the device and the precision.
        more: memories beside those of the layers.
    """

    def __init__(self, size: GridSize, like: Tensor, more: int):
        self.size, (layers, width) = size, like.shape
        self.cache = like.new_zeros(layers, size.rows, size.end, width)
        self.memory = like.new_zeros(layers + more, size.rows, size.sources, width)
        self.mask = like.new_zeros(size.rows, 1, 1, size.sources)

    def part(self, size: GridSize) -> KeysValues:
        """Views of the memory that a captured step of this size reads and writes."""
        return KeysValues(
            self.cache[:, : size.rows, : size.end],
            self.memory[:, : size.rows, : size.sources].unbind(0),
            self.mask[: size.rows, :, :, : size.sources],
        )


class CapturedStep:
    """The step for one size.

    Args:
        size: of the grid.
        run: the decoder.
        kept: what it reads and writes, which stays where it is.
        like: what is read at each position of some window.
    """

    def __init__(self, size: GridSize, run: Run, kept: KeysValues, like: Tensor):
        self.size, self.run, self.kept = size, run, kept
        slots = size.rows * size.width
        self.read_input = like.new_zeros(slots, *like.shape[1:])
        # Which of the given each slot reads, its place, the last one that it sees, the slots that count; what nodes of
        # trees see, as bits.
        words = size.end // WORD if size.tree else 0
        self.numbers = torch.zeros(4 + words, slots, dtype=torch.long, device=like.device)
        self.depths = self.numbers.new_zeros(slots)

    def __call__(self, window: Window, read_input: Tensor, graphs: CapturedSizes) -> Tensor:
        """A window's features (N, C), to be read before the decoder's next call."""
        rows, width, end, _, _ = self.size
        count = len(read_input)
        self.read_input[:count] = read_input
        *placed, used = laid_out(window, rows, width)
        numbers = torch.tensor([*placed, used + [0] * (rows * width - count)])
        if isinstance(window, TreeWindow):
            self.depths[:count] = window.depths
            seen = bits_seen(window, rows, width, end)
            numbers = torch.cat([numbers, seen.view(-1, rows * width)])
        send_into(self.numbers, numbers)
        # Captured after the window was sent: the warm-up call writes to the cache, too.
        x = graphs.run(self.size, self._features, read_input.device)
        if used[-1] == count - 1:
            return x[:count]  # no holes
        return x.index_select(0, self.numbers[3, :count])

    def _features(self) -> Tensor:
        source, places, last, _ = self.numbers[:4].unbind(0)
        rows, width, end, _, tree = self.size
        read_input = self.read_input.index_select(0, source)
        if tree:
            depths = self.depths.index_select(0, source)
            seen = self.numbers[4:].view(rows * width, -1)
            window: GridWindow = GridTree(read_input, places, (rows, width, end), depths, seen)
        else:
            window = GridWindow(read_input, places, (rows, width, end), last, reach=0)
        return self.run(read_input, window, self.kept)


class GraphMemory(Protocol):
    """Tensors that a captured function reads and writes.

    Attributes:
        generation: changes when what was captured over this memory is not to be replayed any more.
        sources: how long what is read of the sources of the batch is; None: the batch is not in this memory.
    """

    generation: int

    @property
    def sources(self) -> int | None: ...


class WindowGraphs:
    """The captured steps of one decoder.

    Args:
        run: the decoder.
        device: a GPU.
        more: memories that it reads of a source beside those of its layers.
    """

    def __init__(self, run: Run, device: torch.device, more: int = 0):
        self.run, self.more, self.graphs = run, more, CapturedSizes()
        self.room: Room | None = None
        self.steps: dict[GridSize, CapturedStep] = {}
        self.batch: GridSize | None = (
            None  # what the batch is given of the room; None: it does not fit
        )
        self.longest = SHORTEST
        self.generation = 0

    @property
    def sources(self) -> int | None:
        return self.batch.sources if self.batch else None

    @property
    def bytes(self) -> int:
        """Memory of the batches that it has room for."""
        return 0 if self.room is None else self.room.cache.nbytes + self.room.memory.nbytes

    def start(
        self, kv: Sequence[Tensor], mask: Tensor | None, rows: int, capacity: int
    ) -> KeysValues:
        """Takes up a batch: keys and values (B, S, 2C) of its sources by layer, their mask, rows, cache places.

        Returns:
            the memory where they are now, with an empty cache.
        """
        layers, (_, length, width) = len(kv) - self.more, kv[0].shape
        if rows > ROWS[-1]:
            self.batch = None
            return KeysValues(kv[0].new_zeros(layers, rows, capacity, width), kv, mask)
        self.place(rows, length, capacity, kv[0].new_empty(layers, width))
        self.fill(kv, mask)
        return self.taken(rows, length)

    def place(self, rows: int, length: int, capacity: int, like: Tensor) -> None:
        """Finds room for a batch with sources of that length; ``like`` (layers, 2C) has the device and the dtype."""
        self.longest = max(self.longest, capacity)
        end = min(grid_end(self.longest), SPARE * grid_end(capacity))
        self.batch = GridSize(grid_rows(rows), 0, end, grid_end(length))
        self.room = self._room(like)

    def taken(self, rows: int, length: int) -> KeysValues:
        """The memory for the given numbers of rows and source keys of the batch."""
        assert self.room is not None and self.batch is not None
        return self.room.part(GridSize(rows, 0, self.batch.end, length))

    def fill(self, kv: Sequence[Tensor] | Tensor, mask: Tensor | None) -> None:
        """Empties the cache and writes keys and values of the sources; may be captured."""
        assert self.room is not None and self.batch is not None
        whole, part = self.room.part(self.batch), self.taken(*kv[0].shape[:2])
        # Zeros, not garbage: a hidden key has weight 0, and 0 times a garbage NaN would be NaN.
        whole.cache.zero_()
        self.room.memory[:, : self.batch.rows, : self.batch.sources].zero_()
        assert whole.memory_mask is not None and part.memory_mask is not None
        whole.memory_mask.fill_(-torch.inf)
        whole.memory_mask[..., 0].zero_()  # rows that are none have something to see
        part.memory_mask.copy_(torch.zeros_like(part.memory_mask) if mask is None else mask)
        if isinstance(kv, Tensor):
            rows, length = kv.shape[1:3]
            self.room.memory[:, :rows, :length].copy_(kv)
            return
        for room, new in zip(part.memory, kv, strict=True):
            room.copy_(new)

    def _room(self, like: Tensor) -> Room:
        assert self.batch is not None
        wanted = self.batch
        if self.room is not None:
            rows, _, end, sources, _ = map(max, self.room.size, self.batch)
            both = GridSize(rows, 0, end, sources)
            if both == self.room.size:
                return self.room
            # Many short sentences and few long ones: room for many long ones may be more than there is.
            if both.places <= SPARE * max(self.room.size.places, self.batch.places):
                wanted = both
        self.forget()
        self.room = None  # its memory is free for the new one
        return Room(wanted, like, self.more)

    def forget(self) -> None:
        """Drops what was captured: memory that it reads is given up."""
        self.steps.clear()
        self.graphs.forget()
        self.generation += 1

    def part(self, rows: int, end: int) -> KeysValues | None:
        """Memory of the first ``rows`` rows and ``end`` keys of the batch; None: the batch is not in the room."""
        if self.batch is None or self.room is None:
            return None
        return self.room.part(self.batch._replace(rows=rows, end=end))

    def step(self, window: Window, input_of: Callable[[], Tensor]) -> Tensor | None:
        """The features (N, C) of a window; None: it is to be run as it is.

        Args:
            window: whose rows are the first of the batch.
            read_input: what is read at each of its positions.
        """
        if self.batch is None or not window.gridded or window.rows > self.batch.rows:
            return None
        if window.width > WIDTHS[-1] or window.end > self.batch.end:
            return None
        width = WIDTHS[bisect_left(WIDTHS, window.width)]
        sources, tree = self.batch.sources, isinstance(window, TreeWindow)
        size = GridSize(grid_rows(window.rows), width, grid_end(window.end), sources, tree)
        assert self.room is not None
        read = input_of()
        if size not in self.steps:
            self.steps[size] = CapturedStep(size, self.run, self.room.part(size), read)
        return self.steps[size](window, read, self.graphs)


def grid_rows(rows: int) -> int:
    """Rows of the smallest step with room for ``rows``; of more than any step has, as many as there are."""
    return rows if rows > ROWS[-1] else ROWS[bisect_left(ROWS, rows)]


def grid_end(keys: int) -> int:
    """Keys of the smallest step with room for ``keys``."""
    size = SHORTEST
    while size < keys:
        size *= 2
    return size
