"""The generator of greedy decoding, drafted or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from torch import Tensor

from fairseq_aggdec.engine.graphs.streams import Beside
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.options.hypotheses import Hypothesis, of_numbers
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.acceptance import Acceptance, exact, trusting
from fairseq_aggdec.search.aligned import WithAttention
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter, EmptyDrafter
from fairseq_aggdec.search.engines import DRAFT_ONLY, GREEDY, EngineRequest
from fairseq_aggdec.search.errors import NonFiniteError, check_scores
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.search.greedy import library
from fairseq_aggdec.search.greedy.outside import OnIteration
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import Batch, DecodeState, Row
from fairseq_aggdec.windows.transfer import Watch

if TYPE_CHECKING:
    from fairseq_aggdec.search.greedy.on_device import DeviceLoop


class DraftAndVerifyGenerator(CachedGenerator):
    """Greedy decoding: draft, verify, accept, with the loop that fits the device (:meth:`_run_loop`).

    Args:
        models, tgt_dict, **options: as :class:`~fairseq_aggdec.search.generator.CachedGenerator`.
        drafter: proposes tokens.
        accept: which drafted tokens are accepted. With ``trusting`` the drafter reads the windows: its tokens are
            emitted, and their scores are the drafter's. The rules hold as for a verifier, but for
            ``--no-repeat-ngram-size`` within a block, whose tokens are chosen at once. A chain goes on from the
            tokens that it chooses itself, before the rules have changed any.
        shortlist: sources (B, S) -> the only types (M,) that their batch may be translated into; None: all.

    Attributes:
        watch: is called after each iteration, which is then done on the host; see
            :class:`~fairseq_aggdec.search.greedy.outside.Follower`.
    """

    asked_search = GREEDY
    watch: OnIteration | None = None

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        tgt_dict: Any,
        *,
        drafter: Drafter,
        accept: Acceptance,
        shortlist: Callable[[Tensor], Tensor] | None = None,
        **options: Any,
    ):
        if accept is trusting:
            self.asked_search = DRAFT_ONLY  # before it says how the verifier is built
        super().__init__(models, tgt_dict, **options)
        self.drafter, self.accept, self.shortlist = drafter, accept, shortlist

    @property
    def reader(self) -> Any:
        """Reads the windows: the verifier, or a drafter that is trusted."""
        return self.drafter if self.accept is trusting else self.verifier

    @property
    def _encodes(self) -> bool:
        """Tells whether anybody needs the verifier's encoder."""
        return self.accept is not trusting or self.reader.model.shares_encoder

    def _prepare(self) -> None:
        if self._encodes:
            self.verifier.prepare()
        if self.accept is not trusting and self.verifier.warm_up():
            self._warm_up()
        self.drafter.prepare(self.verifier)

    def _warm_up(self) -> None:
        """Decodes one token of the sentence with which the verifier was started."""
        device = next(self.model.parameters()).device
        state = DecodeState([Row(0, [self.eos], end=1, floor=1)], self.eos, device)
        if kernels() is None:
            return
        with suppress(NonFiniteError):  # the first sentence that needs a broken weight says so
            library.decode(self, state, EmptyDrafter(), Counters(), whole=False)
            self._hypotheses(state)

    def _release(self) -> None:
        super()._release()
        self.drafter.release()

    def forget(self) -> None:
        self.drafter.forget()

    def refresh(self) -> None:
        super().refresh()
        for watch in self.drafter.watches:
            watch.answer(True)

    def _reads(self, sample: dict[str, Any]) -> Sequence[Tensor]:
        return self.drafter.reads(sample)

    def _watches(self) -> Iterator[Watch]:
        yield from super()._watches()
        yield from self.drafter.watches

    def _needs_whole_batches(self) -> bool:
        # A shortlist is of a batch.
        looked_at = self.shortlist is not None or self.watch is not None or self.retain_history
        return looked_at or super()._needs_whole_batches()

    def _cached_decoders(self) -> list[Any]:
        # A drafter that is trusted reads all of an output anew.
        return [] if self.accept is trusting else super()._cached_decoders()

    def _decode(self, batch: Batch) -> DecodeState:
        limits = self._limits(batch)
        rows, device = self._rows(batch, limits), batch.source.device
        state = DecodeState(rows, self.eos, device, batch.sample, self.accept is exact)
        restricted = self._start(batch, state, limits)
        drafted, sentences = self.counters.drafted, len(state.rows)
        self._run_loop(state, restricted)
        self.counters.sentences += sentences
        if self.counters.drafted == drafted and not isinstance(self.drafter, EmptyDrafter):
            self.counters.undrafted += sentences
        return state

    def _start(self, batch: Batch, state: DecodeState, limits: Limits) -> bool:
        """Encodes a batch and starts the drafter on it; returns whether a shortlist restricts the vocabulary."""
        drafter, verifier = self.drafter, self.verifier
        verified = self.accept is not trusting
        beside = Beside(state.device) if drafter.starts_beside and verified else None
        started = self.counters.read()
        # before the encoder: the host waits for their number
        types = None if self.shortlist is None else self.shortlist(batch.source)
        capacity = limits.longest + 1 if verifier.strict else limits.capacity
        if self._encodes:
            verifier.start(batch.net_input, capacity)
        if types is not None:
            verifier.restrict(types)
        started = self.counters.ended("encoder", started)
        with nullcontext() if beside is None else beside.work():
            drafter.start(batch.sample, verifier, state)
            if self.accept is trusting:
                self.reader.take_over(state)
        self.counters.ended("draft", started)
        return types is not None

    def _run_loop(self, state: DecodeState, restricted: bool = False) -> None:
        """Decodes by the first engine that can."""
        request = self._request(state, restricted)
        self._engine(request).decode(self, state, request)

    def _request(self, *batch: Any, only_stock: str | None = None) -> EngineRequest:
        """Request to the engines; ``batch``: its state, and whether a shortlist restricts the vocabulary."""
        state, restricted = batch or (None, self.shortlist is not None)
        watched = None
        if self.watch is not None:
            watched = "every iteration is watched"
        elif self.retain_history:
            watched = "--retain-iter-history"
        return EngineRequest(
            *(self.asked_search, self.reader, only_stock, self.accept, self.drafter, state),
            watched=watched,
            timed=self.counters.wait is not None,
            restricted=restricted,
            precision=self.precision,
            rules=tuple(self.own_rules),
        )

    def on_board(self, state: DecodeState, request: EngineRequest) -> None:
        size = request.size_on_device
        assert size is not None
        with self.counters.clock("draft" if self.accept is trusting else "verify"):
            self._loop().decode(state, size, self.counters)

    def in_library(self, state: DecodeState, request: EngineRequest) -> None:
        library.decode(self, state, self.drafter, self.counters, whole=True)

    def by_windows(self, state: DecodeState, request: EngineRequest) -> None:
        library.decode(self, state, self.drafter, self.counters, whole=False)

    def _loop(self) -> DeviceLoop:
        """The loop of the last batch, or a new one if the verifier, the drafter or the rules have changed."""
        drafter: Any = self.drafter
        rules = Rules.of(self.options)
        loop: DeviceLoop | None = self.memory.device_loop
        parts = self.reader, drafter, self.accept, rules
        if loop is None or (loop.reader, loop.drafter, loop.accept, loop.rules) != parts:
            from fairseq_aggdec.search.greedy.on_device import DeviceLoop

            loop = self.memory.device_loop = DeviceLoop(*parts)
        return loop

    def _rows(self, batch: Batch, limits: Limits) -> list[Row]:
        return [
            Row(
                index,
                [batch.start],
                end=end,
                floor=limits.floor,
                strict_floor=end if limits.exact else 0,
                prefix=batch.prefixes[index],
                history=[] if self.retain_history else None,
            )
            for index, end in enumerate(limits.ends)
        ]

    def _hypotheses(self, done: DecodeState) -> list[list[Hypothesis]]:
        rows = sorted(done.finished, key=attrgetter("index"))
        totals = list(map(sum, done.scores))
        check_scores(totals)
        nbest = []
        for row, scores, total in zip(rows, done.scores, totals, strict=True):
            tokens = row.tokens[1:]
            score = self.options.score(total, len(tokens))
            nbest.append([of_numbers(tokens, scores, score, row.iterations, row.history or ())])
        return nbest


class AlignedGenerator(SequenceGeneratorWithAlignment, WithAttention, DraftAndVerifyGenerator):
    """``--print-alignment``: stock reads the alignment off the attention of our hypotheses."""
