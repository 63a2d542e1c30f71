"""The start of a batch as captured graphs: its sources are read, and its keys and values laid out, in one launch.

A batch is laid out on a grid of one of a few sizes, which follow from its shape alone. Padding stands before each
source, as fairseq has it; it is hidden, so that a weight of exactly 0 is all that it gets. Rows without a sentence hold
one token. A size is captured when it comes for the second time; the first time it runs on the same grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.engine.graphs.capture import CapturedSizes
from fairseq_aggdec.engine.graphs.streams import capture_purpose
from fairseq_aggdec.engine.graphs.window_graphs import ROWS, WindowGraphs, grid_rows
from fairseq_aggdec.windows.transfer import on_host, send_into

LEAST = 16  # tokens of the shortest grid
# More tokens wait for the arithmetic, not for launches, and a graph would keep all that is computed on the way.
MOST = 2**14
PLACED = "placed_embedding"  # of an encoder output: embeddings (R, L, C) with their positions


class StartSize(NamedTuple):
    """Size of a captured start.

    Attributes:
        rows, length: R rows of L tokens.
        end: keys of the cache of a row.
        purpose: of the stream that it is captured on. A graph uses the scratch memory of that stream, so a graph for
            the current stream must not be replayed beside it.
    """

    rows: int
    length: int
    end: int
    purpose: str


# Keys and values (R, L, 2C) of each layer, and the additive mask (R, 1, 1, L), of an encoder output for tokens (R, L).
ReadSource = Callable[[dict[str, Any], Tensor], tuple[Any, Tensor | None]]
Run = Callable[[Tensor, Sequence[Tensor]], dict[str, Any]]


class CapturedStart:
    """The start of batches of one size.

    Args:
        size: of the grid.
        run: the tokens (R, L), and where embeddings, padding and lengths may be written -> fairseq's encoder output;
            puts all else where it is read.
        kept: (2, R, L, C_enc), where embeddings and states are put.
    """

    def __init__(self, size: StartSize, run: Run, kept: Tensor):
        self.size, self.run, self.kept = size, run, kept
        self.embeddings, self.states = kept.unbind(0)
        self.tokens = torch.zeros(*size[:2], dtype=torch.long, device=kept.device)
        self.hidden = torch.zeros_like(self.tokens, dtype=torch.bool)
        self.lengths = torch.zeros(size.rows, 1, dtype=torch.int32, device=kept.device)
        self.parts = self.embeddings, self.hidden, self.lengths
        self.names: list[str] = []  # of what fairseq's encoder output has

    def __call__(self, tokens: Tensor, graphs: CapturedSizes) -> None:
        """Reads tokens (R, L) of the host."""
        send_into(self.tokens, tokens)
        graphs.run(self.size, self._start, self.tokens.device)

    def _start(self) -> Tensor:
        encoder_out = self.run(self.tokens, self.parts)
        self.names = list(encoder_out)
        parts = "encoder_embedding", "encoder_padding_mask", "src_lengths"
        for room, name in zip(self.parts, parts, strict=True):
            if encoder_out[name][0] is not room:  # the encoder may have written it there
                room.copy_(encoder_out[name][0])
        self.states.copy_(encoder_out["encoder_out"][0].transpose(0, 1))
        return self.kept


class StartGraphs:
    """The captured starts of one model.

    Args:
        graphs: of its decoder, in whose memory batches are put.
        encoder: a :class:`~fairseq_aggdec.engine.encoder.FastEncoder`.
        read: what the decoder makes of them.
    """

    def __init__(self, graphs: WindowGraphs, encoder: Any, read: ReadSource):
        self.graphs, self.encoder, self.read = graphs, encoder, read
        self.starts: dict[StartSize, CapturedStart] = {}
        self.kept: Tensor | None = None  # flat
        self.bound: tuple[object, ...] = ()  # what the captured starts read and write

    def __call__(self, source: Tensor, capacity: int, like: Tensor) -> Any:
        """Takes up a batch: sources (B, S) of the device, ``capacity`` places in the cache of each.

        Args:
            like: (layers, 2C), has the device and the precision of the decoder's keys and values.

        Returns:
            fairseq's encoder output, good until the next batch; None: the batch has no size, and nothing was done.
        """
        rows, tokens = source.shape
        length = grid_length(tokens)
        if rows > ROWS[-1] or not self.encoder.reads(tokens):
            return None
        if grid_rows(rows) * length > MOST:
            return None
        graphs = self.graphs
        graphs.place(rows, length, capacity, like)
        assert graphs.batch is not None
        size = StartSize(graphs.batch.rows, length, graphs.batch.end, capture_purpose(like.device))
        start = self._start_of(size, like)
        host = on_host(source)
        start(self._laid_out(host, size), graphs.graphs)
        padded = bool((host == self.encoder.padding_idx).any())
        place = slice(rows), slice(length - tokens, length)
        return {
            **{name: [] for name in start.names},
            "encoder_out": [start.states[place].transpose(0, 1)],
            "encoder_embedding": [start.embeddings[place]],
            "encoder_padding_mask": [start.hidden[place]] if padded else [],
            "src_lengths": [start.lengths[:rows]],
        }

    def _start_of(self, size: StartSize, like: Tensor) -> CapturedStart:
        shape = 2, size.rows, size.length, self.encoder.channels
        count = math.prod(shape)
        if self.kept is None or self.kept.numel() < count:
            self.kept = like.new_zeros(count)
        bound = self.graphs.generation, self.kept, self.encoder.positions(size.length)
        if len(bound) != len(self.bound) or any(
            a is not b for a, b in zip(bound, self.bound, strict=True)
        ):
            self.graphs.graphs.drop(self.starts)
            self.starts.clear()
            self.bound = bound
        if size not in self.starts:
            self.starts[size] = CapturedStart(size, self._run, self.kept[:count].view(shape))
        return self.starts[size]

    def _run(self, tokens: Tensor, kept: Sequence[Tensor]) -> dict[str, Any]:
        encoder_out = self.encoder.on_grid(tokens, kept)
        self.graphs.fill(*self.read(encoder_out, tokens))
        del encoder_out[PLACED]
        return encoder_out

    def _laid_out(self, source: Tensor, size: StartSize) -> Tensor:
        """(R, L) on the host: each source (B, S) at the end of its row."""
        rows, tokens = source.shape
        pad = self.encoder.padding_idx
        grid = torch.full(size[:2], pad)
        grid[:rows, size.length - tokens :] = source
        grid[rows:, -1] = pad + 1
        return grid


def grid_length(tokens: int) -> int:
    """Tokens of the smallest grid with room for ``tokens``: at most 15 or a third of its places are left."""
    step = max(LEAST, (1 << (tokens - 1).bit_length()) // 4)
    return -(-tokens // step) * step
