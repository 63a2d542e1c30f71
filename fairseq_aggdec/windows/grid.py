"""The window on a fixed grid: the same shapes in every iteration of a batch, whatever is drafted and whoever has ended.

Linear layers choose their products, and attention its sums, by the shapes that they are given; in half precision that
decides what a token's logits round to. So ``--strict`` has every call of a batch read as many rows, slots per row and
keys as every other: a token then gets the same products with and without drafts beside it.

Captured steps on a GPU (:mod:`fairseq_aggdec.engine.graphs.window_graphs`) are on a grid of a few sizes for the same
reason: nothing about a graph but the numbers in its memory can change.

Slots that a row does not use repeat its last token at the same position, so they write the same keys and values. Rows
that have ended, or were never there, read some token at position 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import TreeWindow
from fairseq_aggdec.windows.window import Window

WORD = 64  # bits


class Visibility(NamedTuple):
    """Visibility of the places of each of R W slots, for a kernel that needs no mask.

    Attributes:
        at: (R W,) int64, the place of each slot; None: they have none, and see all that no mask hides.
        last: (R W,) int64, the last place that it sees; None: its own.
        bits: (R W, ``capacity`` / 64) int64, the places that it sees; None: all up to the last.
        mask: additive, (R or 1, 1, W or 1, ``capacity``); None: nothing is hidden by it.
        span: how many places back it sees; None: all.
    """

    at: Tensor | None = None
    last: Tensor | None = None
    bits: Tensor | None = None
    mask: Tensor | None = None
    span: int | None = None


class GridWindow(Window):
    """A window of R rows of W slots over a cache of ``capacity`` places; every size is fixed, every number a tensor.

    Args:
        tokens: (R W,) int64.
        positions: (R W,) int64, below ``capacity``.
        shape: R, W and ``capacity``.
        last: (R W,) int64, the last position that each slot sees; None: its own.
        reach: positions that need an embedding; None: ``capacity`` of them, 0 where the table is there already.

    Attributes:
        steps: (R W,) int64, positions in the sentence.
    """

    fixed = True
    gridded = False  # it has been

    def __init__(
        self,
        tokens: Tensor,
        positions: Tensor,
        shape: tuple[int, int, int],
        last: Tensor | None = None,
        reach: int | None = None,
    ):
        self.tokens, self.at, self.last = tokens, positions, last
        self.steps = positions
        self.rows_of_slots: Tensor | None = None
        self.rows, self.width, self.end = shape
        self.reach = self.end if reach is None else reach
        self.level, self.dense = False, True

    @property
    def size(self) -> tuple[int, int]:
        """Rows, and the keys that they see."""
        return self.rows, self.end

    @property
    def row_of(self) -> Tensor:
        # Not a cached_property: it has a lock, which a captured graph cannot have.
        if self.rows_of_slots is None:
            rows = torch.arange(self.rows, device=self.tokens.device).unsqueeze(1)
            self.rows_of_slots = rows.expand(-1, self.width).flatten()
        return self.rows_of_slots

    @property
    def positions(self) -> Tensor:
        return self.at

    def add_positions(self, x: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
        return torch.add(table[self.steps], x, alpha=scale)

    def mask(self, dtype: torch.dtype, span: int | None = None) -> Tensor:
        """Additive mask (R, 1, W, ``capacity``)."""
        query = self.at.view(self.rows, self.width, 1)
        key = torch.arange(self.end, device=query.device)
        hidden = key > (query if self.last is None else self.last.view(query.shape))
        if span is not None:
            hidden |= key < query - span
        return additive_mask(hidden, dtype)

    def visibility(self, span: int | None = None) -> Visibility:
        """:meth:`mask` as it is, without a kernel."""
        return Visibility(self.at, self.last, span=span)


class GridTree(GridWindow):
    """Trees of prefixes (:class:`~fairseq_aggdec.windows.tree_window.TreeWindow`) on a grid.

    Args:
        tokens, places, shape: as of a :class:`GridWindow`; ``capacity`` is a multiple of 64.
        depths: (R W,) int64, becomes ``steps``.
        seen: (R W, ``capacity`` / 64) int64, the places that each slot sees, as bits.
    """

    def __init__(
        self,
        tokens: Tensor,
        places: Tensor,
        shape: tuple[int, int, int],
        depths: Tensor,
        seen: Tensor,
    ):
        super().__init__(tokens, places, shape, reach=0)
        self.steps, self.seen = depths, seen

    def mask(self, dtype: torch.dtype, span: int | None = None) -> Tensor:
        bits = torch.arange(WORD, device=self.seen.device)
        hidden = self.seen.unsqueeze(2) >> bits & 1 == 0  # (R W, capacity / 64, 64)
        return additive_mask(hidden.view(self.rows, self.width, self.end), dtype)

    def visibility(self, span: int | None = None) -> Visibility:
        return Visibility(self.at, bits=self.seen)


class Grid:
    """The shape that all windows of a batch are laid out to.

    Args:
        rows: R, sentences of the batch.
        width: W, slots of each; no window may have more.
        capacity: places in the cache, as many as any row may need.
    """

    def __init__(self, rows: int, width: int, capacity: int):
        self.shape = rows, width, capacity

    def lay_out(self, window: Window) -> tuple[GridWindow, Tensor]:
        """A window on the grid, and the slots (N,) int64 of its N positions."""
        rows, width, _ = self.shape
        sources, positions, _, slots = laid_out(window, rows, width)
        # One transfer: what every slot reads and where, and behind that the slots that count.
        sent = to_device([*sources, *positions, *slots], window.tokens.device)
        source, position, slot = sent.split([rows * width, rows * width, len(slots)])
        return GridWindow(window.tokens[source], position, self.shape), slot

    def all_rows(self, kept: Sequence[int]) -> list[int]:
        """The rows that stay and, in their own places, those that do not count any more."""
        return [*kept, *range(len(kept), self.shape[0])]


def laid_out(
    window: Window, rows: int, width: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """A window on ``rows`` x ``width`` slots.

    Returns:
        which of the tokens each slot reads, at which position, the last position that it sees; the slots that count.
    """
    sources: list[int] = []
    positions: list[int] = []
    last: list[int] = []
    slots: list[int] = []
    first = 0
    blocks = window.block_starts or window.widths
    for row, (start, used, block) in enumerate(
        zip(window.starts, window.widths, blocks, strict=True)
    ):
        offsets = [*range(used), *[used - 1] * (width - used)]
        sources += [first + offset for offset in offsets]
        positions += [start + offset for offset in offsets]
        last += [start + (offset if offset < block else used - 1) for offset in offsets]
        slots += range(row * width, row * width + used)
        first += used
    missing = [0] * (rows - window.rows) * width
    return sources + missing, positions + missing, last + missing, slots


def bits_seen(window: TreeWindow, rows: int, width: int, places: int) -> Tensor:
    """The places that each slot of a grid sees, as bits: (``rows`` ``width``, ``places`` / 64) int64 on the host."""
    size = places // 8  # bytes for each slot
    rows_bits, first = [], 0
    for used in window.widths:
        of_row = [bits.to_bytes(size, "little") for bits in window.seen[first : first + used]]
        rows_bits += of_row + [of_row[-1]] * (width - used)
        first += used
    rows_bits += [(1).to_bytes(size, "little")] * (rows * width - len(rows_bits))
    return torch.frombuffer(bytearray(b"".join(rows_bits)), dtype=torch.long).view(
        len(rows_bits), -1
    )
