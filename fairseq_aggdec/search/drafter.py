"""What a drafter is: the protocol of the loop, and the drafter that proposes nothing (one-by-one decoding)."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard

from torch import Tensor

from fairseq_aggdec.engine.graphs.window_graphs import Memory
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verification


class Drafter(Protocol):
    """Proposes tokens. With exact acceptance the speed of the loop depends on what is proposed, never its output.

    A drafter whose ``start`` reads the sample only and launches work of its own may have an attribute ``starts_beside``
    that is true: on a GPU its ``start`` then runs beside the verifier's encoder. One with weights to pack may have a
    method ``prepare`` that does it before the first batch.
    """

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        """Takes up a new batch; ``verifier`` has encoded it already."""

    def draft(self, state: DecodeState) -> Draft:
        """Proposes for every row of ``state.rows`` at most ``row.end - row.position`` tokens."""

    def observe(self, verification: Verification, state: DecodeState) -> None:
        """Learns what came of the last draft; ``state.rows`` are still all rows that were verified."""

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps what it knows of the given rows, in this order."""


class Follows(Protocol):
    """A drafter that can draft on the device, for every row as many tokens or fewer.

    One that learns from times may have a method ``iteration_ended(rows, slots, seconds)``: it is told how long an
    iteration took for which it drafted, of so many rows, whose window had so many slots in all. And one
    ``batch_ended(clean, gain)``: it is told of every batch how many tokens an iteration gained, and whether no graph
    was captured meanwhile, so that the time is that of others like it.

    Attributes:
        reads_features: whether it reads what the verifier makes of a position; then it drafts nothing at first.
        ragged: whether it drafts fewer for some rows.
    """

    reads_features: bool
    ragged: bool

    def follows(self, state: DecodeState) -> int | None:
        """How many tokens it drafts for the rows of a batch, which has started; 0 for none; None where the host is to
        be asked in every iteration."""

    def reserve(self, shape: Shape) -> Sequence[Memory]:
        """Makes room for what it reads when the verifier reads windows of such a shape.

        Returns:
            the memory that it reads and writes.
        """

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        """What is drafted behind the last token of every row, (R, W - 1) int64; ``NO_DRAFT`` behind the last token of
        a row for which fewer are drafted.

        Args:
            board: what is known of the sentences.
            owners: (R,) int64, those of the rows.
            rows: their numbers.
            shape: of the window that the verifier is going to read, R, W and the keys of a row.
        """

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Is told of every draft of a batch how many tokens it had, and how many stood."""

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps what it knows of the given rows, in this order."""


def can_follow(drafter: Any) -> TypeGuard[Follows]:
    """Whether a drafter is one that :class:`Follows`; a protocol's own check takes as long as a small product."""
    return hasattr(drafter, "follows")


class EmptyDrafter:
    """Proposes nothing: the loop decodes one by one."""

    reads_features = ragged = False

    def follows(self, state: DecodeState) -> int | None:
        return 0

    def reserve(self, shape: Shape) -> Sequence[Memory]:
        return []

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        return owners.new_empty(len(owners), 0)

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        pass

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        pass

    def draft(self, state: DecodeState) -> Draft:
        return Draft([()] * len(state.rows))

    def observe(self, verification: Verification, state: DecodeState) -> None:
        pass

    def keep_rows(self, rows: Sequence[int]) -> None:
        pass
