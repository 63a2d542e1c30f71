"""``--decoding beam``: fairseq's generator contract around beam search over trees of prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from fairseq.sequence_generator import SequenceGeneratorWithAlignment

from fairseq_aggdec.budget.price import USUAL_PRICE
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.hypotheses import Hypothesis
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.acceptance import exact
from fairseq_aggdec.search.aligned import WithAttention
from fairseq_aggdec.search.beam.budget import Budget
from fairseq_aggdec.search.beam.library import BeamLibrary, hypotheses
from fairseq_aggdec.search.beam.tree import SearchedTree
from fairseq_aggdec.search.compiled.reader import CompiledReaders
from fairseq_aggdec.search.compiled.searches import Outputs
from fairseq_aggdec.search.compiled.windows import WindowReader
from fairseq_aggdec.search.engines import EngineRequest
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.search.greedy.prices import Prices
from fairseq_aggdec.search.state import Batch, DecodeState, Row
from fairseq_aggdec.windows.draft import NO_COPIES, Copies
from fairseq_aggdec.windows.transfer import in_fp32

if TYPE_CHECKING:
    from fairseq_aggdec.search.beam.on_device import BeamLoop

# A batch and the verifier -> the text of each sentence.
Texts = Callable[[Mapping[str, Any], Verifier], Copies]


class BeamGenerator(CachedGenerator):
    """The n-best list of stock beam search, from one tree of prefixes per sentence.

    Args:
        models, tgt_dict, **options: as :class:`~fairseq_aggdec.search.generator.CachedGenerator`.
        texts: a batch -> what each of its outputs may resemble; None where nothing is known.
        ahead: evaluate prefixes before the search asks for them.
        call_price: what calls cost, as ``--call-price`` takes it.

    Attributes:
        searches: of the last batch; none unless somebody looks at them.
        keeps_trees: somebody looks at ``searches``.
        watch: is called with the searches of a batch after every call of the decoder; None: nobody asks.
    """

    watch: Callable[[Sequence[SearchedTree]], None] | None = None
    keeps_trees = False

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        tgt_dict: Any,
        *,
        texts: Texts | None = None,
        ahead: bool = True,
        call_price: str = USUAL_PRICE,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.texts, self.ahead, self.prices = texts, ahead, Prices(call_price)
        self.searches: Sequence[SearchedTree] = []

    @property
    def budget(self) -> Budget | None:
        """Gives what was learned about prefixes ahead; made when the device is known, which training changes."""
        return self.memory.budgets.get(self.texts)

    def forget(self) -> None:
        self.memory.budgets.clear()

    def _needs_whole_batches(self) -> bool:
        looked_at = self.keeps_trees or self.watch is not None or self.retain_history
        return looked_at or super()._needs_whole_batches()

    def _keys_of(self, positions: int) -> int:
        return self.beam_size * positions

    def _decode(self, batch: Batch) -> Outputs:
        limits = self._limits(batch)
        with self.counters.clock("encoder"):
            capacity = self.beam_size * limits.capacity
            self.verifier.start(batch.net_input, capacity)
        self.searches = []
        outputs: Outputs = self._engine(self._request()).decode(self, batch, limits)
        return outputs

    def _request(self, *batch: Any, only_stock: str | None = None) -> EngineRequest:
        watched = None
        if self.keeps_trees or self.watch is not None or self.retain_history:
            watched = "the trees of prefixes are watched"
        return replace(
            super()._request(only_stock=only_stock),
            watched=watched,
            timed=self.counters.wait is not None,
        )

    def on_board(self, batch: Batch, limits: Limits) -> Outputs:
        loop = self._loop()
        with self.counters.clock("verify"):
            arguments = self.options, limits, batch.start, batch.prefixes
            outputs = loop.decode(*arguments, self.counters, self.watch)
        return self._kept(outputs, loop.trees)

    def in_library(self, batch: Batch, limits: Limits) -> Outputs:
        library = self._library(batch, limits)
        with self.counters.clock("verify"):
            CompiledReaders.of(self.verifier).run(library, self._shown(library))
        outputs = library.outputs(self.counters)
        self.counters.calls += outputs.result.calls
        return self._kept(outputs, library.trees)

    def by_windows(self, batch: Batch, limits: Limits) -> Outputs:
        library = self._library(batch, limits)
        device, rules = batch.source.device, self.options.own_rules
        reader = WindowReader(self.verifier, device, exact, self.counters, rules=rules)
        reader.run(library, self._shown(library))
        return self._kept(library.outputs(self.counters), library.trees)

    def _loop(self) -> BeamLoop:
        """The search on the board, with the board of the batch before."""
        loop: BeamLoop | None = self.memory.device_loop
        if loop is None or loop.reader is not self.verifier:
            from fairseq_aggdec.search.beam.on_device import BeamLoop

            loop = self.memory.device_loop = BeamLoop(self.verifier)
        return loop

    def _kept(self, outputs: Outputs, trees: Callable[[], list[SearchedTree]]) -> Outputs:
        """The outputs of a batch, whose trees are kept if somebody looks at them."""
        if self.keeps_trees or self.retain_history:
            self.searches = trees()
        return outputs

    def _shown(self, library: BeamLibrary) -> Callable[[], None] | None:
        """Shows the trees to whoever watches."""
        watch = self.watch
        return None if watch is None else lambda: watch(library.trees())

    def _library(self, batch: Batch, limits: Limits) -> BeamLibrary:
        """The search of a batch, with what it drafts from."""
        texts, budget, sentences = NO_COPIES, None, len(limits.ends)
        if self.ahead:
            budget = self.budget or self._first_budget(batch, limits)
            budget.weigh(sentences, self.beam_size)
            if self.texts is not None and budget.wants_texts(sentences, self.beam_size):
                texts = self.texts(batch.sample, self.verifier)
        return BeamLibrary(self.options, limits, batch.start, batch.prefixes, texts, budget)

    def _first_budget(self, batch: Batch, limits: Limits) -> Budget:
        """Gives what is believed of prefixes ahead before the first batch."""
        rows = [Row(i, [batch.start], end, 0) for i, end in enumerate(limits.ends)]
        state = DecodeState(rows, self.options.eos, batch.source.device)
        budget = Budget(state.device.type, self.prices.said_of(self.verifier, state))
        self.memory.budgets[self.texts] = budget
        return budget

    def _hypotheses(self, done: Outputs) -> list[list[Hypothesis]]:
        ranked = [as_stock_sorts(ended) for ended in hypotheses(done, self.options)]
        if [] in ranked:  # whatever may come is impossible
            raise NonFiniteError(ranked.index([]))
        for search in self.searches:
            search.ranked = ranked[search.index]
            for one in search.ranked if self.retain_history else ():
                one["history"] = [{"tokens": torch.tensor(seen)} for seen in search.history]
        return ranked


def as_stock_sorts(ended: list[Hypothesis]) -> list[Hypothesis]:
    """Sorts the hypotheses of a sentence, in the order in which they ended, best first."""
    if len(ended) < 2:
        return ended
    scores = in_fp32([float(one["score"]) for one in ended])
    return [ended[i] for i in torch.sort(scores, descending=True)[1].tolist()]


class AlignedBeamGenerator(SequenceGeneratorWithAlignment, WithAttention, BeamGenerator):
    """``--print-alignment``: stock reads the alignment of every hypothesis off its attention."""
