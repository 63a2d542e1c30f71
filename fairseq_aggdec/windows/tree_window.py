"""Windows that branch: nodes of a tree of prefixes, or of drafted tokens, for every row."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.windows.transfer import sent, to_device
from fairseq_aggdec.windows.window import Window


class TreeWindow(Window):
    r"""New nodes of one tree of prefixes per row: each sees its ancestors and itself, whatever branches beside it.

    A node's place in the cache is the number of nodes that its row evaluated before it; its position in the sentence
    is its depth. ::

        tree      root -- She -- go          places    0    1   2   3   4
                            \-- goes -- to   depths    0    1   2   2   3
        "to" sees places 0, 1, 3 and 4

    Args:
        tokens: N of them, row after row (host numbers).
        starts: place of each row's first new node (host numbers).
        widths: number of new nodes of each row (host numbers, each >= 1).
        depths: of the N nodes (host numbers).
        seen: per new node, row after row, the places that it sees as the bits of a number.
        device: where the window is read.
    """

    def __init__(
        self,
        tokens: list[int],
        starts: Sequence[int],
        widths: Sequence[int],
        depths: list[int],
        seen: Sequence[int],
        device: torch.device,
    ):
        super().__init__(tokens, starts, widths, device=device)
        self.host_depths, self.reach, self.seen = depths, max(depths) + 1, seen

    @functools.cached_property
    def tokens(self) -> Tensor:
        return self._numbers[0]

    @functools.cached_property
    def depths(self) -> Tensor:
        """(N,) int64."""
        return self._numbers[1]

    @functools.cached_property
    def _numbers(self) -> Tensor:
        """(2, N): one transfer for tokens and depths."""
        return to_device([*self.host_tokens(), *self.host_depths], self.device).view(2, -1)

    def add_positions(self, x: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
        return torch.add(table[self.depths], x, alpha=scale)

    def places(self) -> tuple[bytes, int]:
        """The places that each new node sees, one node after the other, as bits, lowest first; and how many bytes are a
        node's."""
        size = -(-self.end // 8)
        return b"".join([bits.to_bytes(size, "little") for bits in self.seen]), size

    def mask(self, dtype: torch.dtype, span: int | None = None) -> Tensor:
        """Additive mask (B, 1, W, ``end``); holes of the grid see the root."""
        size = -(-self.end // 8)  # bytes for each node
        hole = (1).to_bytes(size, "little")
        rows, first = [], 0
        for width in self.widths:
            rows += [bits.to_bytes(size, "little") for bits in self.seen[first : first + width]]
            rows += [hole] * (self.width - width)
            first += width
        packed = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
        packed = sent(packed, self.tokens.device)
        # (B W size,) -> (B W size, 8) -> (B, 1, W, 8 size); rows begin at multiples of 8, as fused attention wants them
        mask = _bits(dtype, packed.device)[packed.int()]
        return mask.view(self.rows, 1, self.width, -1)[..., : self.end]


def likeliest(tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The first path through a tree: tokens and parents as of a :class:`~fairseq_aggdec.windows.draft.Draft`."""
    path, end = [], 0
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), 1):
        if parent == end:
            path.append(token)
            end = node
    return path


@functools.cache
def _bits(dtype: torch.dtype, device: torch.device) -> Tensor:
    """(256, 8) what the bits of a byte add to attention, lowest first: 0 for a key that is seen, else -inf."""
    bits = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
    mask = torch.zeros(256, 8, dtype=dtype).masked_fill_(bits == 0, -torch.inf)
    return mask.to(device)
