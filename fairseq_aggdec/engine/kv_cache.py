"""The keys and values of a batch: what its rows have committed, and what was made of its sources."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.engine.compiled import CompiledLayers, Memory
from fairseq_aggdec.engine.graphs.window_graphs import WindowGraphs
from fairseq_aggdec.windows.masks import mask_of_rows
from fairseq_aggdec.windows.transfer import to_device


class KVCache:
    """Places for the keys and values of each row; a rejected draft is overwritten by the next window.

    Args:
        graphs: captured steps, in whose memory a batch is kept that fits; None: there are none.
        compiled: moves entries on a CPU; None: PyTorch does.
        hides: whatever reads the entries leaves hidden ones out, so that these may hold anything.

    Attributes:
        entries: (layers, B, capacity, 2C).
        capacity: places of each row.
        memory: those of the sources, (B, S, 2C) for each layer.
        memory_mask: additive, (B, 1, 1, S); None: no source is padded.
    """

    entries: Tensor
    capacity: int
    memory: Memory
    memory_mask: Tensor | None

    def __init__(
        self, graphs: WindowGraphs | None, compiled: CompiledLayers | None, hides: bool = False
    ):
        self.graphs, self.compiled, self.hides = graphs, compiled, hides
        # The memory of entries, kept from batch to batch: flat, and as it was last shaped.
        self.spare: Tensor | None = None
        self.room: Tensor | None = None
        self.kind: tuple[Any, ...] = ()  # device, type and mode in which it was made

    def start(
        self, memory: Memory, mask: Tensor | None, shape: tuple[int, ...], like: Tensor
    ) -> None:
        """Takes up a batch.

        Args:
            memory, mask: as the attributes.
            shape: of the entries; ``capacity`` grows when needed.
            like: has their device and dtype.
        """
        if self.graphs is not None:
            self.take(*self.graphs.start(list(memory), mask, *shape[1:3]))
        else:
            self.take(self._emptied(shape, like), memory, mask)

    def take(self, entries: Tensor, memory: Memory, mask: Tensor | None) -> None:
        """Takes up a batch that is in this memory."""
        self.entries, self.memory, self.memory_mask = entries, memory, mask
        self.capacity = entries.size(2)

    def _emptied(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory of that shape, or for more places where hidden entries may hold anything: that of the batch before if
        it is large enough, else emptied.

        Fresh memory of the system is slow to touch. Zeros where PyTorch reads it: a hidden key has weight 0, and 0
        times a garbage NaN would be NaN.
        """
        kind = like.device, like.dtype, torch.is_inference_mode_enabled()
        count, spare, room = math.prod(shape), self.spare, self.room
        if spare is None or room is None or self.kind != kind or spare.numel() < count:
            self.spare, self.kind = like.new_zeros(count), kind
            self.room = self.spare.view(shape)
            return self.room
        if not self.hides or room.shape[:2] != shape[:2] or room.size(2) < shape[2]:
            if self.hides:  # all of it: then this batch seldom needs new memory
                shape = (*shape[:2], len(spare) // (count // shape[2]), shape[3])
            room = self.room = spare[: math.prod(shape)].view(shape)
        return room if self.hides else room.zero_()

    def reserve(self, places: int) -> None:
        """Makes room for at least that many places per row."""
        if places > self.capacity:
            extra = max(places - self.capacity, self.capacity // 2)
            self.entries = F.pad(self.entries, (0, 0, 0, extra))
            self.capacity += extra
            self._keep_room()
            if self.graphs is not None:  # they may be where they are to be, which is emptied first
                self.memory = [memory.clone() for memory in self.memory]
            self._move_in()

    def _keep_room(self) -> None:
        """Entries that have grown are the memory of the next batch, if they are larger than what was kept for it."""
        spare = self.spare
        if self.graphs is None and spare is not None and self.entries.numel() > spare.numel():
            self.spare, self.room = self.entries.view(-1), self.entries

    def move(self, places: Sequence[tuple[int, int, int]]) -> None:
        """Copies entries: (row, from which place, to which)."""
        if self.compiled is not None:
            self.compiled.move(self.entries, places)
            return
        rows, old, new = to_device(places, self.entries.device).unbind(1)
        self.entries[:, rows, new] = self.entries[:, rows, old]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps the given rows in the given order; a row that stays in its place is not copied."""
        moved = [(new, old) for new, old in enumerate(rows) if new != old]
        if moved:
            new, old = to_device(moved, self.entries.device).unbind(1)
            self.entries[:, new] = self.entries[:, old]
            for memory in self.memory:
                memory[new] = memory[old]
            if self.memory_mask is not None:
                self.memory_mask[new] = self.memory_mask[old]
        self.entries = self.entries[:, : len(rows)]
        self.memory = [memory[: len(rows)] for memory in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[: len(rows)]

    def gather_rows(self, rows: Tensor) -> None:
        """Makes row ``rows[i]``, (R,) int64, the new row i; rows may come several times or not at all."""
        self.entries = self.entries.index_select(1, rows)
        self.memory = [memory.index_select(0, rows) for memory in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = mask_of_rows(self.memory_mask, rows)
        self._move_in()

    def reorder(self, rows: Tensor, places: int) -> None:
        """Moves rows, as :meth:`gather_rows` does, for the first ``places`` of rows that stay within their sentence."""
        written = self.entries[:, :, :places]
        written.copy_(written.index_select(1, rows))

    def _move_in(self) -> None:
        """Copies entries in new memory to where captured steps find them."""
        if self.graphs is None:
            return
        entries, mask = self.entries, self.memory_mask
        mask = None if mask is None else mask.clone()  # it may be where it is to be
        kept = self.graphs.start(list(self.memory), mask, *entries.shape[1:3])
        kept.cache[:, :, : entries.size(2)] = entries
        self.take(*kept)
