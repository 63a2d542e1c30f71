"""``--decoding nar``: a non-autoregressive drafter on its own, block after block, with nobody to verify it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fairseq_aggdec.drafters.in_library import CompiledSlots
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.graphs.window_graphs import GraphMemory
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.options.stopping import check
from fairseq_aggdec.search.acceptance import exact
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.compiled.reader import PAUSE, TOGETHER
from fairseq_aggdec.search.compiled.searches import ENDED, NO_ROOM, ReadingStruct, WholeSearch
from fairseq_aggdec.search.compiled.windows import WindowReader
from fairseq_aggdec.search.engines import DRAFT_ONLY
from fairseq_aggdec.search.greedy import library
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator
from fairseq_aggdec.search.greedy.on_device import DeviceLoop
from fairseq_aggdec.search.greedy.outside import Follower
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import Batch, DecodeState
from fairseq_aggdec.windows.draft import Kept
from fairseq_aggdec.windows.window import DecoderOutput, Window


class DraftOnlyLoop(DeviceLoop):
    """The loop on the device of a drafter that nobody verifies: a row gains what its slots say, up to ``</s>``."""

    drafter: NarDrafter

    def captures(self) -> bool:
        return self.drafter.captures

    def _proposed_from(self) -> tuple[int, Tensor]:
        return 0, next(self.drafter.model.parameters())

    def _rooms(self, end: int) -> list[GraphMemory]:
        return []  # the drafter's alone

    def _keep_rows(self, rows: Sequence[int]) -> None:
        self.drafter.keep_rows(rows)

    def _iterate(self, board: Board, rows: Rows, shape: Shape) -> None:
        count, size = len(rows.owners), shape.width - 1
        logits = self.drafter.logits_on_device(board, rows.owners, rows, shape).flatten(0, 1)
        if self.verifier.temperature != 1.0:
            logits = logits.float().div_(self.verifier.temperature)  # (R k, V)
        # Padding, which is in no output, for what is not known: it repeats no n-gram.
        unknown = rows.owners.new_full((count, size - 1), self.rules.pad)
        asked = self.books.begin(board, rows, unknown, self.drafter)
        asked = asked._replace(length=rows.owners.new_full((count,), size))
        self.books.end(board, rows, asked, logits, None, alone=True)


class DraftOnlyGenerator(DraftAndVerifyGenerator):
    """Every token that the drafter proposes stands, up to its ``</s>``; scores are the drafter's.

    The generation options hold as for the verifier, but for ``--no-repeat-ngram-size`` within a block, whose tokens are
    chosen at once. A chain (``--slot-chain``) goes on from the tokens that it chooses itself, before the options have
    changed any.
    """

    drafter: NarDrafter
    asked_search = DRAFT_ONLY
    verified = False

    @cached_property
    def on_device(self) -> type[DeviceLoop]:
        return DraftOnlyLoop

    @property
    def _reader(self) -> NarDrafter:
        return self.drafter

    def gap(self) -> None:
        """Stock fairseq would decode with the verifier, whose output is another."""

    def _prepare(self) -> None:
        if self.drafter.model.shares_encoder:  # nothing else of the verifier runs
            self.verifier.prepare()
        self.drafter.prepare(self.verifier)

    def _start(self, batch: Batch, state: DecodeState, limits: Limits) -> bool:
        with self.counters.clock("encoder"):
            if self.drafter.model.shares_encoder:
                for member in self.verifier.members:  # their encoders: nothing is verified
                    member.start(batch.net_input, limits.capacity)
        with self.counters.clock("draft"):
            self.drafter.start(batch.sample, self.verifier, state)
        if not self.drafter.readable:
            raise ValueError(
                f"a source of {batch.source.size(1)} tokens is longer than the drafter of --drafter-path can read; "
                "--decoding gad leaves it to the verifier"
            )
        with self.counters.clock("draft"):
            self.drafter.begin()
        for row in state.rows:
            row.end = min(row.end, self.drafter.longest)
        return False

    def _decode_in_library(self, state: DecodeState, whole: bool) -> None:
        drafter, size = self.drafter, self.drafter.draft_length.plan(len(state.rows))
        drafts = drafter.in_library(state)
        search = library.search_of(state, Rules.of(self.options), drafts=drafts, alone=size)
        reads = Unverified(drafter, state, self.temperature)
        reader = WindowReader(reads, state.device, exact, self.counters, part="draft")
        watched = self.watch is not None or state.rows[0].history is not None
        follower = None
        if drafts is None or watched:
            follower = Follower(search, state, watch=self.watch, output=reader.output, alone=True)
        if drafts is None:
            assert follower is not None
            reader.run(search, follower.follow)
        else:
            with self.counters.clock("draft"):
                self._run_alone(search, drafts, None if follower is None else follower.follow)
        library.finish(search, follower, state, self.counters, whole=drafts is not None)

    def _run_alone(
        self, search: WholeSearch, drafts: CompiledSlots, watch: Callable[[], None] | None
    ) -> None:
        """Decodes to the end, the compiled library reading the slots."""
        types = drafts.proposer.kept[0].outputs
        pause = PAUSE if watch is None else 0.0  # a run ends after one window
        how = ReadingStruct(1, types, self.temperature, pause, TOGETHER)
        while (why := search.run_alone(how)) != ENDED:
            check()
            if why == NO_ROOM:
                drafts.draft(search)
            elif watch is not None:
                watch()


@dataclass
class Unverified:
    """Output of the drafter, in the place of what a verifier says of windows."""

    drafter: NarDrafter
    state: DecodeState
    temperature: float

    def read(self, window: Window) -> DecoderOutput:
        """Logits (B * k, V) of a block of k slots for each row."""
        logits = self.drafter.logits(self.state, window.width).float().flatten(0, 1)
        return DecoderOutput(logits.div_(self.temperature), [])

    def keep(self, kept: Kept) -> None:
        if kept.rows is not None:
            self.drafter.keep_rows(kept.rows)
