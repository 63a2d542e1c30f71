"""Windows that branch: nodes of a tree of prefixes for every row, and trees of drafted tokens."""

import functools
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.windows.transfer import sent, to_device
from fairseq_aggdec.windows.window import DraftPath, Window


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


class DraftedTree(TreeWindow):
    """The last committed token of each row and a tree of drafted tokens below it.

    All places up to a row's first are those of its committed tokens; when it is known which path stands, its keys and
    values are moved behind them (:meth:`~fairseq_aggdec.engine.verifier.Verifier.settle`).

    Args:
        tokens: of each row, the last committed one first (host numbers).
        parents: which of its row each drafted token follows, 0 being the last committed one (host numbers).
        starts: positions of the last committed tokens (host numbers).
        device: of the window.

    Attributes:
        above: (N,) int64, after which of the N positions each stands; a root after itself.
        below: (N,) int64, how many drafted tokens lead to each, itself included; a root has 0.
    """

    def __init__(
        self,
        tokens: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]],
        starts: Sequence[int],
        device: torch.device,
    ):
        host = [token for row in tokens for token in row]
        depths: list[int] = []
        below: list[int] = []
        above, seen = [], []
        for following, start in zip(parents, starts, strict=True):
            root = len(depths)
            depths.append(start)
            below.append(0)
            above.append(root)
            seen.append((2 << start) - 1)
            for place, parent in enumerate(following, start + 1):
                parent += root
                depths.append(depths[parent] + 1)
                below.append(below[parent] + 1)
                above.append(parent)
                seen.append(seen[parent] | 1 << place)
        super().__init__(host, starts, [len(row) for row in tokens], depths, seen, device)
        self.host_links, self.parents = (above, below), parents

    @functools.cached_property
    def links(self) -> Tensor:
        """(2, N): ``above`` and ``below``, which only relaxed acceptance reads."""
        return to_device(self.host_links, self.device)

    @property
    def above(self) -> Tensor:
        return self.links[0]

    @property
    def below(self) -> Tensor:
        return self.links[1]

    @functools.cached_property
    def outputs(self) -> Sequence[Sequence[int]]:
        ends = itertools.accumulate(self.widths)
        return [
            self.host_depths[end - width : end]
            for end, width in zip(ends, self.widths, strict=True)
        ]

    def drafted_paths(self) -> list[list[int]]:
        """The likeliest path of each row."""
        rows = super().drafted_paths()
        return [likeliest(row, parents) for row, parents in zip(rows, self.parents, strict=True)]

    def paths(self) -> list[list[DraftPath]]:
        rows: list[list[DraftPath]] = []
        for tokens, parents in zip(super().drafted_paths(), self.parents, strict=True):
            paths: list[list[int]] = [[]]
            for token, parent in zip(tokens, parents, strict=True):
                paths.append([*paths[parent], token])
            rows.append([(path, [node]) for node, path in enumerate(paths)])
        return rows


def likeliest(tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The first path through a tree: tokens and parents as :class:`DraftedTree` has them, without the root."""
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
