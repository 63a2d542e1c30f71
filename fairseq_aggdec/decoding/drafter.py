"""What a drafter is: the protocol of the loop, and the drafter that proposes nothing (one-by-one decoding)."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from fairseq_aggdec.decoding.draft import Draft, Verification
from fairseq_aggdec.decoding.state import DecodeState
from fairseq_aggdec.decoding.verifier import Verifier


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


@runtime_checkable
class Follows(Protocol):
    """A drafter that can draft on the device, for every row as many tokens, and learns nothing from what stands."""

    def follows(self) -> int | None:
        """How many, 0 for none; None where the host is to be asked in every iteration."""

    def block(self, features: Tensor, last: Tensor, size: int) -> Tensor:
        """What is drafted behind the last tokens of the rows.

        Args:
            features: (R, C), the verifier's, of which the last tokens were chosen.
            last: (R,) int64.
            size: how many.

        Returns:
            (R, ``size``) int64.
        """


class EmptyDrafter:
    """Proposes nothing: the loop decodes one by one."""

    def follows(self) -> int | None:
        return 0

    def block(self, features: Tensor, last: Tensor, size: int) -> Tensor:
        return last.new_empty(len(last), 0)

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        pass

    def draft(self, state: DecodeState) -> Draft:
        return Draft([()] * len(state.rows))

    def observe(self, verification: Verification, state: DecodeState) -> None:
        pass

    def keep_rows(self, rows: Sequence[int]) -> None:
        pass
