"""Drafts, and the verdict of the verifier about them: what drafters, verifier and loop hand to each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import DraftedTree, likeliest
from fairseq_aggdec.windows.window import DecoderOutput, Window


class Draft:
    """Proposed tokens of every row, possibly none, on the host: one path per row, or a tree.

    Worked example of a tree (the one of :class:`~fairseq_aggdec.windows.tree_window.TreeWindow`, whose root is the last
    committed token): tokens ``She go goes to``, parents ``0 1 1 3``.

    Args:
        tokens: one sequence of token ids per row. A parent comes before its children, and the likeliest child first.
            Any id of the target dictionary may be drafted.
        parents: of each token its parent: a token of the draft, counted from 1, or 0 for the last committed token.
            None: every token follows the one before.

    Attributes:
        branches: some row has two tokens with the same parent.
    """

    branches = False
    parents: Sequence[Sequence[int]] | None = None

    def __init__(
        self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]] | None = None
    ):
        self.tokens, self.lengths = tokens, [len(row) for row in tokens]
        if parents is not None:
            self.parents = parents
            self.branches = any(list(row) != list(range(len(row))) for row in parents)

    def after(self, last: Sequence[int], device: torch.device) -> Tensor | list[int]:
        """The last committed token and the draft of each row, row after row: (B + sum of lengths,), host numbers, or
        int64 if the draft is on the device."""
        rows = zip(last, self.tokens, strict=True)
        return [token for first, row in rows for token in (first, *row)]

    def window(self, last: Sequence[int], starts: Sequence[int], device: torch.device) -> Window:
        """The window that verifies the draft: each row's last committed token, at place ``starts``, and the draft."""
        if self.branches:
            rows = [[first, *row] for first, row in zip(last, self.tokens, strict=True)]
            return DraftedTree(rows, self.all_parents(), starts, device)
        widths = [length + 1 for length in self.lengths]
        return Window(self.after(last, device), starts, widths, device=device)

    def chain(self) -> "Draft":
        """The likeliest path of each row."""
        if not self.branches:
            return self
        return Draft([likeliest(*row) for row in zip(self.tokens, self.all_parents(), strict=True)])

    def first(self, most: int) -> "Draft":
        """At most ``most`` tokens of every row; the draft must not branch."""
        return self if max(self.lengths) <= most else Draft([row[:most] for row in self.tokens])

    def rows(self) -> Sequence[Sequence[int]]:
        """The tokens of every row, on the host."""
        return self.tokens

    def all_parents(self) -> Sequence[Sequence[int]]:
        """The parents of the tokens of every row."""
        return self.parents or [range(length) for length in self.lengths]


class BlockDraft(Draft):
    """Proposed tokens that live on the verifier's device: they are never copied to the host.

    Args:
        block: (B, K) int64.
        lengths: how many tokens of each row count, at most K (host numbers).
    """

    def __init__(self, block: Tensor, lengths: Sequence[int]):
        self.block, self.lengths = block, list(lengths)

    def first(self, most: int) -> Draft:
        if max(self.lengths) <= most:
            return self
        return BlockDraft(self.block[:, :most], [min(length, most) for length in self.lengths])

    def rows(self) -> Sequence[Sequence[int]]:
        return [row[:n] for row, n in zip(self.block.tolist(), self.lengths, strict=True)]

    def after(self, last: Sequence[int], device: torch.device) -> Tensor:
        first = to_device(last, device).unsqueeze(1)
        tokens = torch.cat([first, self.block], dim=1)  # (B, 1 + K)
        if min(self.lengths) == self.block.size(1):
            return tokens.flatten()
        width = tokens.size(1)
        used = [
            row * width + slot
            for row, length in enumerate(self.lengths)
            for slot in range(length + 1)
        ]
        return tokens.flatten().index_select(0, to_device(used, device))


@dataclass(frozen=True)
class Proposing:
    """How a model computes what it proposes, which need not be as exact as what verifies it.

    Attributes:
        types: choose among the first ``types`` of the dictionary; 0: among all.
        int8: compute in 8 bits, on CPU in fp32, where that is faster.
    """

    types: int = 0
    int8: bool = False


AS_VERIFIED = Proposing()


@dataclass(frozen=True)
class Copies:
    """Drafts that are copied from a text for each sentence of a batch.

    Attributes:
        texts: tokens, start symbol first, below 0 where one must not be drafted; none: nothing is drafted.
        match: which occurrence counts, see :class:`~fairseq_aggdec.drafters.copy.copy_text.CopyText`.
        fixed, most, probing, unknown, step_cost: as :class:`~fairseq_aggdec.budget.copy_length.CopyLength` has them.
        accepted, checked: tokens of all texts so far.
    """

    texts: Sequence[Sequence[int]]
    match: str = "unique"
    fixed: bool = False
    most: int = 0
    probing: bool = False
    unknown: bool = False
    step_cost: float = 0.0
    accepted: float = 0.0
    checked: float = 1.0


NO_COPIES = Copies(())


@dataclass(frozen=True)
class BatchVerdict:
    """The drafts of a whole batch that was decoded without the host.

    Attributes:
        drafted, accepted: of every draft, the number of its tokens and of the accepted ones.
        emitted: tokens that each row gained in every iteration.
    """

    drafted: Sequence[int]
    accepted: Sequence[int]
    emitted: Sequence[int]

    @property
    def gain(self) -> float:
        """Tokens per iteration."""
        return sum(self.emitted) / len(self.emitted)


class Kept(NamedTuple):
    """What the KV cache keeps after an iteration.

    Attributes:
        rows: the rows that go on, in their new order; None: all rows, in their order.
        moved: (row, from, to) positions of keys and values to move; rows are numbered as before.
        gathered: (R,) int64 on the device, instead of ``rows``: row ``gathered[i]`` becomes row i. A row may come
            several times or not at all, and the number of rows may change.
        within: with ``gathered``, positions that have been written, if all rows stay within their sentence, so that the
            keys of the source need no moving; 0: rows may come from anywhere.
    """

    rows: Sequence[int] | None = None
    moved: Sequence[tuple[int, int, int]] = ()
    gathered: Tensor | None = None
    within: int = 0


@dataclass
class Verdict:
    """The result of one iteration.

    Attributes:
        window: the positions that were verified.
        drafted: number of drafted tokens per row.
        accepted: number of accepted tokens per row (the bifurcation).
        emitted: tokens gained per row: the accepted ones and the verifier's correction token, nothing after ``</s>``.
        paths: per row, the positions (of the N of the window) at which they were emitted; None if no draft branched:
            then they are the first positions of each row.
        scores: log-probabilities of all emitted tokens, row after row, in nats; None until they are computed.
        output: of the verifier for the window; None: the caller has no need of it.
    """

    window: Window
    drafted: list[int]
    accepted: list[int]
    emitted: list[list[int]]
    paths: list[list[int]] | None = None
    scores: Tensor | None = None
    output: DecoderOutput | None = None

    def moved(self) -> list[tuple[int, int, int]]:
        """Keys and values of accepted tokens that stand behind another branch of a tree: (row, from, to) positions."""
        if self.paths is None:
            return []
        found, first = [], 0
        for row, path in enumerate(self.paths):
            start = self.window.starts[row]
            found += [
                (row, start + slot - first, start + place)
                for place, slot in enumerate(path)
                if slot - first != place
            ]
            first += self.window.widths[row]
        return found

    def last_places(self) -> list[int]:
        """The position of the window from which each row's last token comes; any position if the row has ended."""
        if self.paths is not None:
            return [path[-1] for path in self.paths]
        last, first = [], 0
        for accepted, width in zip(self.accepted, self.window.widths, strict=True):
            last.append(first + accepted)
            first += width
        return last
