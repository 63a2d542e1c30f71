"""``--decoding beam``: fairseq's generator contract around beam search over trees of prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from fairseq.sequence_generator import SequenceGeneratorWithAlignment

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.hypotheses import Hypothesis, hypothesis, in_fp32
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.aligned import WithAttention
from fairseq_aggdec.search.beam.batch import BeamSearch, nothing_ahead
from fairseq_aggdec.search.beam.budget import Budget
from fairseq_aggdec.search.beam.rules import SentenceRules
from fairseq_aggdec.search.beam.search import DraftedText, Ending, SentenceSearch
from fairseq_aggdec.search.beam.tree import Tree
from fairseq_aggdec.search.compiled import beam as compiled_beam
from fairseq_aggdec.search.compiled.searches import Outputs
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.generator import Batch, CachedGenerator
from fairseq_aggdec.search.loop import decode
from fairseq_aggdec.windows.window import Said

if TYPE_CHECKING:
    from fairseq_aggdec.search.beam.on_device import BeamLoop

# A batch and the verifier -> the text of each sentence.
Texts = Callable[[Mapping[str, Any], Verifier], Sequence[DraftedText]]


class Foreteller(Protocol):
    """Knows what may follow prefixes that were not evaluated. What it says changes the speed, never the result."""

    def foretell(self, searches: Sequence[SentenceSearch], verifier: Verifier, said: Said) -> None:
        """Fills ``tree.foretold`` after a call, by what the verifier ``said`` of its window."""


class BeamGenerator(CachedGenerator):
    """The n-best list of stock beam search, from one tree of prefixes per sentence.

    Args:
        models, tgt_dict, **options: as :class:`~fairseq_aggdec.search.generator.CachedGenerator`.
        texts: a batch -> what each of its outputs may resemble; None where nothing is known.
        ahead: evaluate prefixes before the search asks for them.
        foreteller: notes in the trees of the searches, after each call, what may follow.

    Attributes:
        budget: what is learned about the latter, made when the device is known, which training changes.
        searches: of the last batch; none where the compiled library has decoded it.
        keeps_trees: somebody looks at ``searches``.
        search_type: what searches a batch.
        watch: is called with the searches of a batch after every call of the decoder; None: nobody asks.
    """

    watch: Callable[[Sequence[SentenceSearch]], None] | None = None
    search_type: type[BeamSearch] = BeamSearch
    keeps_trees = False

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        tgt_dict: Any,
        *,
        texts: Texts | None = None,
        ahead: bool = True,
        foreteller: Foreteller | None = None,
        **options: Any,
    ):
        super().__init__(models, tgt_dict, **options)
        self.texts, self.ahead, self.foreteller = texts, ahead, foreteller
        self.budget: Budget | None = None
        self.searches: list[SentenceSearch] = []
        self.device_loop: BeamLoop | None = None

    def _release(self) -> None:
        super()._release()
        self.device_loop = None

    def forget(self) -> None:
        self.budget = None

    def _decode(self, batch: Batch) -> list[SentenceSearch] | Outputs:
        if self.budget is None:
            foretells = self.foreteller is not None
            self.budget = Budget(batch.source.device.type, self.beam_size, foretells)
        self.budget.batches += 1
        limits = self._limits(batch)
        with self.counters.clock("encoder"):
            capacity = self.beam_size * limits.capacity
            self.verifier.start(batch.net_input, capacity, cached_only=True)  # trees of prefixes
        self.searches = []
        if self._is_unseen and (loop := self._loop()) is not None:
            with self.counters.clock("verify"):
                return loop.decode(self.options, limits, batch.start, batch.prefixes, self.counters)
        if self._evaluates_nothing_ahead(len(limits.ends)):
            outputs = compiled_beam.decode(
                self.verifier, self.options, limits, batch.start, batch.prefixes, self.counters
            )
            if outputs is not None:
                return outputs
        self.searches = searches = self._searches(batch, limits)
        search_of_all = self.search_type(
            list(searches),
            self.options,
            self.budget.plan if self.ahead else nothing_ahead,
            batch.source.device,
            self._foretell if self.foreteller is not None else None,
            self.watch,
            self.budget.observe,
        )
        decode(self.verifier, search_of_all, self.counters)
        for search in searches:
            search.count(self.counters)
        self.budget.gained([worth for search in searches for worth in search.worth()])
        return searches

    @property
    def _is_unseen(self) -> bool:
        """Whether nobody looks at the trees of a batch's searches, which are this class's own."""
        seen = self.keeps_trees or self.watch is not None or self.retain_history
        own = getattr(self._searches, "__func__", None)  # an heir may search in another way
        return not seen and self.search_type is BeamSearch and own is BeamGenerator._searches

    def _loop(self) -> BeamLoop | None:
        """The loop that a GPU goes on with alone; None: the host searches."""
        # A clock that waits for the device tells the parts of an iteration apart, which are one there.
        if not self.verifier.captures or self.counters.wait is not None:
            return None
        loop = self.device_loop
        if loop is None or loop.verifier is not self.verifier:
            from fairseq_aggdec.search.beam.on_device import BeamLoop

            loop = self.device_loop = BeamLoop(self.verifier)
        return loop if loop.takes_over() else None

    def _evaluates_nothing_ahead(self, sentences: int) -> bool:
        """Whether the search of a batch needs no tree of prefixes, so that the compiled library can do it."""
        if not self._is_unseen:
            return False
        assert self.budget is not None
        return not self.ahead or self.budget.rests(sentences, self.texts is not None)

    def _searches(self, batch: Batch, limits: Limits) -> list[SentenceSearch]:
        texts: Sequence[DraftedText | None] = [None] * len(limits.ends)
        if self.texts is not None:
            texts = self.texts(batch.sample, self.verifier)
        return [
            SentenceSearch(
                index,
                SentenceRules(
                    self.eos,
                    self.beam_size,
                    limits.longest,
                    limits.floor,
                    batch.prefixes[index],
                    self.pad,
                    max(0.0, -self.unk_penalty),
                    end if limits.exact else None,
                ),
                Tree(batch.start, self.options.no_repeat_ngram_size),
                texts[index],
                history=[] if self.retain_history else None,
            )
            for index, end in enumerate(limits.ends)
        ]

    def _foretell(self, searches: Sequence[SentenceSearch], said: Said) -> None:
        assert self.foreteller is not None
        self.foreteller.foretell(searches, self.verifier, said)

    def _hypotheses(self, done: list[SentenceSearch] | Outputs) -> list[list[Hypothesis]]:
        if isinstance(done, Outputs):
            each = compiled_beam.hypotheses(done, self.options)
            ranked = [as_stock_sorts(found) for found in each]
        else:
            ranked = [self.ranked(search) for search in done]
        if [] in ranked:  # whatever may come is impossible
            raise NonFiniteError(ranked.index([]))
        return ranked

    def ranked(self, search: SentenceSearch) -> list[Hypothesis]:
        """All hypotheses of a finished search, best first."""
        return as_stock_sorts([self._hypothesis(search, ending) for ending in search.endings])

    def _hypothesis(self, search: SentenceSearch, ending: Ending) -> Hypothesis:
        tree, node = search.tree, ending.node
        totals = [*tree.totals_of(node), ending.total]
        gains = [total - before for total, before in zip(totals, [0.0, *totals], strict=False)]
        score = self.options.score(ending.total, tree.depths[node] + 1)
        source_length = search.rules.source_length
        if source_length is not None and tree.depths[node] > source_length:
            score = -torch.inf
        tokens = torch.tensor([*tree.words(node), self.eos])
        return hypothesis(
            tokens, in_fp32(gains), in_fp32(score), search.calls, search.history or ()
        )


def as_stock_sorts(found: list[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses of a sentence, best first."""
    scores = in_fp32([float(one["score"]) for one in found])
    return [found[i] for i in torch.sort(scores, descending=True)[1].tolist()]


class AlignedBeamGenerator(SequenceGeneratorWithAlignment, WithAttention, BeamGenerator):
    """``--print-alignment``: stock reads the alignment of every hypothesis off its attention."""
