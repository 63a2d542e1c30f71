"""Drafters propose tokens: the base class, that of drafters that also run on a device, and the empty drafter."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from fairseq_aggdec.budget.price import USUAL_PRICE
from fairseq_aggdec.engine.graphs.window_graphs import GraphMemory
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import NO_COPIES, BatchVerdict, Copies, Draft, Verdict
from fairseq_aggdec.windows.transfer import Watch


class InLibrary(Protocol):
    """A drafter that the compiled library runs beside its greedy search.

    Attributes:
        channels: of the verifier's features that it reads; 0: it reads none.
    """

    channels: int

    def fill(self, options: Any) -> None:
        """Names it in the options of a search, ``GreedyOptions`` of ``greedy.h``."""

    def draft(self, search: Any) -> None:
        """The search needs something of Python before it can draft: sources that are read, or more room."""

    def ended(self, search: Any) -> None:
        """Takes up what was learned from the batch."""


class Timed(InLibrary, Protocol):
    """One whose drafts are timed."""

    def rehearsing(self) -> AbstractContextManager[None]:
        """While this lasts a draft takes about as long as later ones do, whatever it drafts."""


class Drafter:
    """Proposes tokens. With exact acceptance the speed of the loop depends on what is proposed, never its output.

    A drafter must define :meth:`draft`. Everything else has a default that does nothing.

    Attributes:
        starts_beside: :meth:`start` reads the sample only and launches work of its own. On a GPU it then runs beside
            the verifier's encoder.
        call_price: what calls cost, as ``--call-price`` takes it.
        encoder_seconds: time that the drafter spent on reading sources, summed over batches.
        wait: called when the drafter has read sources, so that its time can be told; None: nothing waits.
    """

    starts_beside = False
    call_price = USUAL_PRICE
    encoder_seconds = 0.0
    wait: Callable[[], object] | None = None

    @property
    def watches(self) -> Sequence[Watch]:
        """Names what to ask the device about the drafter's weights when a batch begins."""
        return ()

    def reads(self, sample: Mapping) -> Sequence[Tensor]:
        """Tensors of a batch, beside its source, that :meth:`start` needs on the host; one transfer fetches all."""
        return ()

    def prepare(self, verifier: Verifier) -> None:
        """Packs weights before the first batch, so that the first sentence does not wait for it."""

    def forget(self) -> None:
        """Forgets what was learned from earlier batches."""

    def release(self) -> None:
        """Gives back memory that is kept from batch to batch; what was learned stays."""

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        """Takes up a new batch; ``verifier`` has encoded it already."""

    def copies(self) -> Copies | None:
        """Texts that are drafted in the batch that was started, where that are copies of texts, or nothing at all.

        The compiled library can then decode the batch alone. None: the host must ask in every iteration.
        """
        return None

    def in_library(self, state: DecodeState) -> InLibrary | None:
        """Drafter in the compiled library in place of :meth:`draft`, :meth:`observe` and :meth:`keep_rows`.

        Asked when the batch was started. None: Python is asked in every iteration.
        """
        return None

    def draft(self, state: DecodeState) -> Draft:
        """Proposes at most ``row.end - row.position`` tokens for every row of ``state.rows``."""
        raise NotImplementedError(f"{type(self).__name__} does not define draft()")

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        """Learns what the verifier made of the last draft; ``state.rows`` are still all rows that were verified."""

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Some sentences have ended: keeps what it knows of the given rows, in this order."""


class DeviceDrafter(Drafter):
    """A drafter that can also draft on the device, while the host waits for nothing.

    Attributes:
        reads_features: reads the verifier's features of each row's last position; so it drafts nothing at first.
        ragged: may draft fewer tokens for some rows than for others.
    """

    reads_features = False
    ragged = False

    def start_on_device(self, state: DecodeState) -> int | None:
        """Takes up a started batch for the loop on the device, if it can be decoded there.

        Returns:
            how many tokens it drafts for each row, 0 for none; None where the host must ask in every iteration.
        """
        return None

    def reserve(self, shape: Shape) -> Sequence[GraphMemory]:
        """Makes room for drafting beside windows of this shape; returns the memory that drafting reads and writes."""
        return []

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        """The draft behind the last token of every row, (R, W - 1) int64. Rows with fewer tokens end in ``NO_DRAFT``.

        Args:
            board: what is known of the sentences.
            owners: (R,) int64, the sentences of the rows.
            rows: their numbers.
            shape: of the window that the verifier will read: R, W and the keys of a row.
        """
        return owners.new_empty(len(owners), 0)

    def logits_on_device(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        """Logits (R, W - 1, V) of the tokens of :meth:`block`, with its arguments, where the drafter is trusted."""
        raise NotImplementedError(f"{type(self).__name__} is verified")

    def observe_batch(self, verdict: BatchVerdict) -> None:
        """Learns from a batch that the device has decoded alone: what :meth:`observe` is for the host."""


class EmptyDrafter(DeviceDrafter):
    """Proposes nothing: the loop decodes one by one."""

    def copies(self) -> Copies:
        return NO_COPIES

    def start_on_device(self, state: DecodeState) -> int | None:
        return 0

    def draft(self, state: DecodeState) -> Draft:
        return Draft([()] * len(state.rows))
