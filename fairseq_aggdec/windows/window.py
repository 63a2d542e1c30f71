"""The window: the new decoder positions of one iteration, for every row of a ragged batch.

Worked example. Two rows have committed ``</s> a b c`` and ``</s> d``; the drafts are ``e f`` and nothing. The window is

    tokens    c e f | d        what the decoder reads: the last committed token and the draft (N = 4)
    widths    3       1        W = 3 slots in the widest row
    starts    3       1        position of the first slot = number of keys that the row has in its cache
    slots     0 1 2 | 3        index into the padded (B, W) grid
    positions 3 4 5 | 1        position of each token in its sentence; also the output index that its logits predict

Linear layers run over the N real tokens only; attention alone runs over the padded grid.

A slot sees all committed keys of its row. Within the window it sees the slots up to itself (verification), or, from
``block_starts`` on, the whole window of its row (a block that is written at once, as a non-autoregressive drafter
does).
"""

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.transfer import sent, to_device


class Window:
    """N new positions of B rows, W slots in the widest row.

    Args:
        tokens: (N,) int64, row after row; or host numbers, which are sent to ``device`` if they are asked for there.
        starts: position of each row's first slot (host numbers, B of them).
        widths: number of slots of each row (host numbers, B of them, each >= 1).
        block_starts: first slot of each row that sees the row's whole window (host numbers, B of them, 0 to width);
            None when every slot sees only the slots up to itself.
        wanted: features are returned of that many last slots of each row; 0: of all.
        device: where the window is read, if its tokens are host numbers.

    Attributes:
        alone: every slot sees itself only, and nothing is kept (:class:`NodeWindow`).
        fixed: its shape is that of every window of the batch (:class:`~fairseq_aggdec.windows.grid.GridWindow`).
        gridded: it can be laid out on a grid, see :func:`~fairseq_aggdec.windows.grid.laid_out`.
        end: one more than the last place in the cache that is written or read.
        reach: one more than the last position, by which position embeddings are chosen.
    """

    alone = False
    fixed = False
    gridded = True
    wanted = 0
    host: list[int] | None = None  # the tokens, where the host knows them

    def __init__(
        self,
        tokens: Tensor | list[int],
        starts: Sequence[int],
        widths: Sequence[int],
        block_starts: Sequence[int] | None = None,
        wanted: int = 0,
        device: torch.device | None = None,
    ):
        if isinstance(tokens, Tensor):
            self.tokens, device = tokens, tokens.device
        else:
            self.host = tokens
        assert device is not None
        self.device = device
        self.wanted = wanted
        self.starts, self.widths, self.block_starts = starts, widths, block_starts
        self.rows, self.width = len(starts), max(widths)
        self.end = max(map(operator.add, starts, widths))
        self.reach = self.end

    @functools.cached_property
    def level(self) -> bool:
        """Tells whether all rows start at the same position."""
        return min(self.starts) == max(self.starts)

    @functools.cached_property
    def dense(self) -> bool:
        """Tells whether the grid has no holes."""
        return min(self.widths) == self.width

    @functools.cached_property
    def tokens(self) -> Tensor:
        """(N,) int64, row after row."""
        return to_device(self.host, self.device)

    def drafted_tokens(self) -> list[list[int]]:
        """The tokens of each row after its first."""
        tokens, ends = self.host_tokens(), itertools.accumulate(self.widths)
        return [tokens[end - width + 1 : end] for end, width in zip(ends, self.widths, strict=True)]

    def host_tokens(self) -> list[int]:
        """The N tokens on the host; tokens of a device are fetched once."""
        if self.host is None:
            self.host = self.tokens.tolist()
        return self.host

    @property
    def slots(self) -> Tensor:
        """(N,) index of each token in the padded grid."""
        return self._placement[0]

    @property
    def row_of(self) -> Tensor:
        """(N,) row of each token."""
        return self._placement[1]

    @property
    def positions(self) -> Tensor:
        """(N,) position of each token in its sentence."""
        return self._placement[2]

    def row_ends(self, count: int) -> Tensor | slice:
        """The last ``count`` places of every row, row after row."""
        if self.rows == 1:
            return slice(self.widths[0] - count, self.widths[0])  # read without an index
        rows = [range(end - count, end) for end in itertools.accumulate(self.widths)]
        return to_device(rows, self.tokens.device, torch.long).flatten()

    def of_wanted(self, x: Tensor) -> Tensor:
        """(N, C) -> what is wanted of it."""
        return x[self.row_ends(self.wanted)] if self.wanted else x

    @functools.cached_property
    def _placement(self) -> tuple[Tensor, ...]:
        # Made on demand: rows in lockstep (and a single row) never ask.
        host = torch.tensor([self.starts, self.widths])
        starts, widths = host[0], host[1]
        row_of = torch.repeat_interleave(torch.arange(self.rows), widths)
        first = torch.cumsum(widths, 0) - widths
        offset = torch.arange(row_of.numel()) - first[row_of]
        placed = torch.stack([row_of * self.width + offset, row_of, starts[row_of] + offset])
        return sent(placed, self.tokens.device).unbind(0)

    def add_positions(self, x: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
        """Adds each token's row of a position table (>= ``end``, C) to its embedding (N, C) times ``scale``."""
        if self.level and self.dense:
            grid = torch.add(
                table[self.starts[0] : self.end], x.view(self.rows, self.width, -1), alpha=scale
            )
            return grid.view(-1, x.size(-1))
        return torch.add(table[self.positions], x, alpha=scale)

    def to_grid(self, x: Tensor) -> Tensor:
        """(N, C) -> (B, W, C), holes filled with zeros."""
        if self.dense:
            return x.view(self.rows, self.width, -1)
        grid = x.new_zeros(self.rows * self.width, x.size(-1))
        return grid.index_copy_(0, self.slots, x).view(self.rows, self.width, -1)

    def from_grid(self, grid: Tensor) -> Tensor:
        """(B, W, C) -> (N, C), the inverse of :meth:`to_grid`."""
        flat = grid.reshape(self.rows * self.width, -1)
        return flat if self.dense else flat.index_select(0, self.slots)

    def mask(self, dtype: torch.dtype, span: int | None = None) -> Tensor | None:
        """Additive mask (B or 1, 1, W, ``end``) of what each slot sees; None when nothing is hidden.

        Args:
            dtype: of the mask.
            span: how many positions before itself a slot sees at most (local attention), None for all.
        """
        if self.level and span is None:
            if self.block_starts is None:
                return None if self.width == 1 else self._causal_mask(dtype)
            if self.dense and max(self.block_starts) == 0:
                return None
        query, last = self._visibility()
        key = torch.arange(self.end, device=self.tokens.device)
        hidden = key > last.unsqueeze(2)  # (B, W, end)
        if span is not None:
            hidden |= key < query.unsqueeze(2) - span
        return additive_mask(hidden, dtype)

    def _visibility(self) -> tuple[Tensor, Tensor]:
        """Position of every slot of the grid and the last position that it sees, both (B, W)."""
        blocks = self.widths if self.block_starts is None else self.block_starts
        host = torch.tensor([self.starts, self.widths, blocks]).unsqueeze(-1)
        starts, widths, blocks = sent(host, self.tokens.device)  # each (B, 1)
        slot = torch.arange(self.width, device=self.tokens.device)
        query = starts + slot
        in_block = (slot >= blocks) & (slot < widths)
        return query, torch.where(in_block, starts + widths - 1, query)

    def _causal_mask(self, dtype: torch.dtype) -> Tensor:
        places = torch.arange(self.end, device=self.tokens.device)
        hidden = places > places[self.starts[0] :].unsqueeze(1)  # (W, end)
        return additive_mask(hidden.unsqueeze(0), dtype)


@dataclass
class DecoderOutput:
    """Output that a model, or an ensemble, computes for the N positions of a window.

    Attributes:
        logits: (N, V) fp32, or in the model's precision if the caller asked for that. Their ``log_softmax`` gives
            log-probabilities; for an ensemble those of the averaged probabilities. A window on a grid has logits for
            all its slots.
        features: (N, C) for each model, the input of its output projection; valid until the model reads again.
        parts: (N, P, 5) int32, what the kernel ``look`` of a GPU would find in P parts of each position's logits; None:
            it was not asked for, or the kernel that tells it did not run.
    """

    logits: Tensor
    features: Sequence[Tensor]
    parts: Tensor | None = None


class NodeWindow(Window):
    """Alternatives, any number of them at a position, none of which sees another: the nodes of a lattice.

    Each is a history of its own, one token long (a bigram).

    Args:
        tokens: (N,) int64, row after row.
        positions: (N,) int64, of each node.
        widths: number of nodes of each row (host numbers).
        end: one more than the last position.
    """

    alone = True
    gridded = False

    def __init__(self, tokens: Tensor, positions: Tensor, widths: Sequence[int], end: int):
        super().__init__(tokens, [0] * len(widths), widths)
        self.node_positions, self.end, self.reach = positions, end, end

    def add_positions(self, x: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
        return torch.add(table[self.node_positions], x, alpha=scale)
