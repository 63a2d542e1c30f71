"""``--decoding beam``: fairseq's generator contract around beam search over trees of prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from fairseq.sequence_generator import SequenceGeneratorWithAlignment

from fairseq_aggdec.budget.call_cost import key_of_search
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.hypotheses import Hypothesis
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.aligned import WithAttention
from fairseq_aggdec.search.beam.budget import Budget
from fairseq_aggdec.search.beam.library import BeamLibrary, TableReader, hypotheses
from fairseq_aggdec.search.beam.tree import SearchedTree
from fairseq_aggdec.search.compiled.reader import CompiledReaders
from fairseq_aggdec.search.compiled.searches import Outputs
from fairseq_aggdec.search.engines import BEAM, EngineRequest, read_by_windows
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.search.state import Batch
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

    Attributes:
        budget: what is learned about the latter, made when the device is known, which training changes.
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
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.texts, self.ahead = texts, ahead
        self.budget: Budget | None = None
        self.searches: Sequence[SearchedTree] = []
        self.device_loop: BeamLoop | None = None

    def _release(self) -> None:
        super()._release()
        self.device_loop = None

    def forget(self) -> None:
        self.budget = None

    def _decode(self, batch: Batch) -> Outputs:
        limits = self._limits(batch)
        with self.counters.clock("encoder"):
            capacity = self.beam_size * limits.capacity
            self.verifier.start(batch.net_input, capacity)
        self.searches = []
        request = self._request()
        engine = self._engine(request)
        if engine == "board":
            loop = self._loop()
            with self.counters.clock("verify"):
                given = self.options, limits, batch.start, batch.prefixes
                found = loop.decode(*given, self.counters, self.watch)
            return self._kept(found, loop.trees)
        library, whole = self._library(batch, limits), read_by_windows(request) is None
        (self._compiled if whole else self._by_windows)(library, batch.source.device)
        outputs = library.outputs(self.counters)
        if whole:
            self.counters.calls += outputs.found.calls
        return self._kept(outputs, library.trees)

    def _request(self) -> EngineRequest:
        """Request to the engines."""
        watched = None
        if self.keeps_trees or self.watch is not None or self.retain_history:
            watched = "the trees of prefixes are watched"
        timed = self.counters.wait is not None
        return EngineRequest(BEAM, self.verifier, watched=watched, timed=timed)

    def _loop(self) -> BeamLoop:
        """The search on the board, with the board of the batch before."""
        loop = self.device_loop
        if loop is None or loop.verifier is not self.verifier:
            from fairseq_aggdec.search.beam.on_device import BeamLoop

            loop = self.device_loop = BeamLoop(self.verifier)
        return loop

    def _kept(self, outputs: Outputs, trees: Callable[[], list[SearchedTree]]) -> Outputs:
        """The outputs of a batch, whose trees are kept if somebody looks at them."""
        if self.keeps_trees or self.retain_history:
            self.searches = trees()
        return outputs

    def _compiled(self, library: BeamLibrary, device: torch.device) -> None:
        """Decodes the batch in one call."""
        with self.counters.clock("verify"):
            CompiledReaders.of(self.verifier).run(library, self._shown(library))

    def _by_windows(self, library: BeamLibrary, device: torch.device) -> None:
        """Decodes the batch by windows that Python reads."""
        reader = TableReader(self.verifier, device, self.counters, self.options)
        reader.run(library, self._shown(library))

    def _shown(self, library: BeamLibrary) -> Callable[[], None] | None:
        """Shows the trees to whoever watches."""
        watch = self.watch
        return None if watch is None else lambda: watch(library.trees())

    def _library(self, batch: Batch, limits: Limits) -> BeamLibrary:
        """The search of a batch, with what it drafts from."""
        texts, budget, sentences = NO_COPIES, None, len(limits.ends)
        if self.ahead:
            if self.budget is None:
                int8 = self.verifier.precision.int8
                self.budget = Budget(key_of_search(batch.source.device.type, int8))
            budget = self.budget
            if self.texts is not None and budget.wants_texts(sentences, self.beam_size):
                texts = self.texts(batch.sample, self.verifier)
        return BeamLibrary(self.options, limits, batch.start, batch.prefixes, texts, budget)

    def _hypotheses(self, done: Outputs) -> list[list[Hypothesis]]:
        ranked = [as_stock_sorts(found) for found in hypotheses(done, self.options)]
        if [] in ranked:  # whatever may come is impossible
            raise NonFiniteError(ranked.index([]))
        for search in self.searches:
            search.ranked = ranked[search.index]
            for one in search.ranked if self.retain_history else ():
                one["history"] = [{"tokens": torch.tensor(seen)} for seen in search.history]
        return ranked


def as_stock_sorts(found: list[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses of a sentence, best first."""
    if len(found) < 2:
        return found
    scores = in_fp32([float(one["score"]) for one in found])
    return [found[i] for i in torch.sort(scores, descending=True)[1].tolist()]


class AlignedBeamGenerator(SequenceGeneratorWithAlignment, WithAttention, BeamGenerator):
    """``--print-alignment``: stock reads the alignment of every hypothesis off its attention."""
