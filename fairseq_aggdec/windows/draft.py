"""Drafts, and the verdict of the verifier about them: what drafters, verifier and loop hand to each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fairseq_aggdec.windows.tree_window import likeliest
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

    def all_parents(self) -> Sequence[Sequence[int]]:
        """The parents of the tokens of every row."""
        return self.parents or [range(length) for length in self.lengths]


@dataclass(frozen=True)
class Copies:
    """Drafts that are copied from a text for each sentence of a batch.

    Attributes:
        texts: tokens, start symbol first, below 0 where one must not be drafted; none: nothing is drafted.
        match: which occurrence counts, see :mod:`~fairseq_aggdec.drafters.copy.copy_text`.
        fixed, most, probing, unknown, price: as :class:`~fairseq_aggdec.budget.copy_length.CopyLength` has them.
        accepted, checked: tokens of all texts so far.
    """

    texts: Sequence[Sequence[int]]
    match: str = "unique"
    fixed: bool = False
    most: int = 0
    probing: bool = False
    unknown: bool = False
    price: Any = None
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
    """Slots that the KV cache keeps after an iteration.

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
        parents: of the drafted tokens of each row, as a :class:`Draft` has them; None if no draft branched.
        paths: per row, the positions (of the N of the window) at which they were emitted; None if no draft branched:
            then they are the first positions of each row.
        scores: log-probabilities of all emitted tokens, row after row, in nats; None until they are computed.
        output: of the verifier for the window; None: the caller has no need of it.
        choices: the verifier's own token at each of the N positions.
    """

    window: Window
    drafted: list[int]
    accepted: list[int]
    emitted: list[list[int]]
    parents: list[list[int]] | None = None
    paths: list[list[int]] | None = None
    scores: Tensor | None = None
    output: DecoderOutput | None = None
    choices: Sequence[int] = ()

    def drafted_paths(self) -> list[list[int]]:
        """The likeliest path of what was drafted for each row."""
        rows = self.window.drafted_tokens()
        if self.parents is None:
            return rows
        return [likeliest(*row) for row in zip(rows, self.parents, strict=True)]

    def last_places(self) -> list[int]:
        """The position of the window from which each row's last token comes; any position if the row has ended."""
        if self.paths is not None:
            return [path[-1] for path in self.paths]
        last, first = [], 0
        for accepted, width in zip(self.accepted, self.window.widths, strict=True):
            last.append(first + accepted)
            first += width
        return last
