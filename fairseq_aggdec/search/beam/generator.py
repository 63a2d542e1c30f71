"""``--decoding beam``: fairseq's generator contract around beam search over trees of prefixes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from torch import Tensor

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.hypotheses import Hypothesis, hypothesis
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.aligned import WithAttention
from fairseq_aggdec.search.beam.budget import NOTHING_AHEAD, Budget
from fairseq_aggdec.search.beam.rules import SentenceRules
from fairseq_aggdec.search.beam.search import Ending, SentenceSearch
from fairseq_aggdec.search.beam.tables import best_tokens
from fairseq_aggdec.search.beam.tree import NOTHING, ROOT, Tree
from fairseq_aggdec.search.generator import CachedGenerator, Request
from fairseq_aggdec.search.rules import repeats
from fairseq_aggdec.search.state import remaining
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import TreeWindow

# A batch and the verifier -> the tokens of each sentence's text.
Texts = Callable[[Mapping[str, Any], Verifier], Sequence[Sequence[int]]]


class Foreteller(Protocol):
    """Knows what may follow prefixes that were not evaluated. What it says changes the speed, never the result."""

    def foretell(self, searches: Sequence[SentenceSearch], verifier: Verifier) -> None:
        """Fills ``tree.foretold`` after a call, while ``verifier.features`` are those of its window."""


class BeamGenerator(CachedGenerator):
    """The n-best list of stock beam search, from one tree of prefixes per sentence.

    Args:
        models, tgt_dict, **options: as :class:`~fairseq_aggdec.search.generator.CachedGenerator`.
        texts: a batch -> what each of its outputs may resemble; None where nothing is known.
        ahead: evaluate prefixes before the search asks for them.
        foreteller: notes in the trees of the searches, after each call, what may follow.

    Attributes:
        budget: what is learned about the latter, made when the device is known, which training changes.
        searches: of the last batch.
        watch: is called with the searches of a batch after every call of the decoder; None: nobody asks.
    """

    watch: Callable[[Sequence[SentenceSearch]], None] | None = None

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
        self.verifier.cached_only = True  # trees of prefixes
        self.budget: Budget | None = None
        self.searches: list[SentenceSearch] = []

    def forget(self) -> None:
        self.budget = None

    def _decode(self, request: Request) -> list[SentenceSearch]:
        device = request.source.device
        if self.budget is None:
            self.budget = Budget(device.type, self.beam_size)
        self.budget.batches += 1
        limits = self._limits(request)
        self.searches = searches = self._searches(request, limits)
        with self.counters.clock("encoder"):
            self.verifier.start(request.net_input, self.beam_size * limits.capacity)
        self._search(list(searches), self.budget, device)
        for search in searches:
            search.count(self.counters)
            for guess, used in search.outcome():
                self.budget.observe(guess, used)
        self.budget.gained([worth for search in searches for worth in search.worth()])
        return searches

    def _searches(self, request: Request, limits: Limits) -> list[SentenceSearch]:
        texts: Sequence[Sequence[int]] = [()] * len(limits.ends)
        if self.texts is not None:
            texts = self.texts(request.sample, self.verifier)
        return [
            SentenceSearch(
                index,
                SentenceRules(
                    self.eos,
                    self.beam_size,
                    limits.longest,
                    limits.floor,
                    request.prefixes[index],
                    self.pad,
                    max(0.0, -self.unk_penalty),
                    end if limits.exact else None,
                ),
                Tree(request.start),
                texts[index],
                history=[] if self.retain_history else None,
            )
            for index, end in enumerate(limits.ends)
        ]

    def _search(self, searches: list[SentenceSearch], budget: Budget, device: torch.device) -> None:
        """Searches every sentence to its end."""
        counters = self.counters
        while searches:
            with counters.clock("draft"):
                plan = budget.plan(len(searches)) if self.ahead else NOTHING_AHEAD
                requests = [search.requests(plan) for search in searches]
            with counters.clock("verify"):
                tables = self._evaluate(searches, requests, device)
            with counters.clock("other"):
                for search, nodes, rows in zip(searches, requests, tables, strict=True):
                    search.receive(nodes, rows)
                    search.advance()
                counters.calls += 1
                if self.watch is not None:
                    self.watch(searches)
            if self.foreteller is not None and plan.foretold >= 0:
                with counters.clock("draft"):
                    self.foreteller.foretell(searches, self.verifier)
            with counters.clock("other"):
                keep = remaining([not search.done for search in searches])
                if keep is not None:
                    searches[:] = [searches[row] for row in keep]
                    if keep:
                        self.verifier.keep_rows(keep)

    def _evaluate(
        self,
        searches: Sequence[SentenceSearch],
        requests: Sequence[Sequence[int]],
        device: torch.device,
    ) -> list[list[Any]]:
        """Runs the decoder over the requested prefixes of every row; one copy to the device, one back."""
        starts = [search.tree.places for search in searches]
        seen: list[int] = []
        tokens: list[int] = []
        depths: list[int] = []
        needed: list[int] = []
        # Not by what is banned here: a draft may not change how a score is rounded.
        banned: list[tuple[int, int]] | None = [] if self.no_repeat_ngram_size > 0 else None
        for search, nodes in zip(searches, requests, strict=True):
            tree, rules = search.tree, search.rules
            if banned is not None:
                banned += self._repeats(tree, nodes, len(seen))
            seen += tree.place(nodes)
            tokens += [tree.tokens[node] for node in nodes]
            own = [tree.depths[node] for node in nodes]
            needed += map(rules.wanted, own)
            depths += own
        widths = [len(nodes) for nodes in requests]
        window = TreeWindow(tokens, starts, widths, depths, seen, device)
        numbers = to_device([*tokens, *depths, *needed], device)  # at once
        window.tokens, window.depths, wanted = numbers.view(3, -1).unbind(0)
        logits = self.verifier.logits(window)
        count = min(self.beam_size + 1, logits.size(1))
        table = best_tokens(logits, count, wanted, self.pad, self.unk, self.unk_penalty, banned)
        return self._tables(searches, requests, table.cpu())

    def _tables(
        self,
        searches: Sequence[SentenceSearch],
        requests: Sequence[Sequence[int]],
        table: Tensor,
    ) -> list[list[Any]]:
        """What the rules make of :func:`best_tokens`, on the host."""
        count = table.size(1) // 2
        words = table[:, count : 2 * count].int()
        tables, at = [], iter(zip(table.tolist(), words.tolist(), strict=True))
        for search, nodes in zip(searches, requests, strict=True):
            depths, rules = search.tree.depths, search.rules
            own = []
            for node, (row, tokens) in zip(nodes, at):  # noqa: B905  (the rows of all sentences)
                if row[0] != row[0]:  # NaN; what was evaluated in vain does no harm
                    search.tree.broken.add(node)
                    own.append(NOTHING)
                    continue
                own.append(rules.table(depths[node], tokens, row[:count], row[-1]))
            tables.append(own)
        return tables

    def _repeats(self, tree: Tree, nodes: Sequence[int], first: int) -> list[tuple[int, int]]:
        """(index in the window, token) of what would complete an n-gram that occurred before."""
        found, size, start = [], self.no_repeat_ngram_size, tree.tokens[ROOT]
        for index, node in enumerate(nodes, first):
            words = tree.words(node)
            found += [(index, token) for _, token in repeats(words, len(words), size, start)]
        return found

    def _hypotheses(self, done: list[SentenceSearch]) -> list[list[Hypothesis]]:
        """All hypotheses, best first as stock sorts them."""
        found = []
        for search in done:
            ranked = [self._hypothesis(search, ending) for ending in search.endings]
            scores = in_fp32([float(one["score"]) for one in ranked])
            order = torch.sort(scores, descending=True)[1].tolist()
            found.append([ranked[i] for i in order])
        return found

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


def in_fp32(numbers: float | list[float]) -> Tensor:
    """Scores as stock has them, whatever PyTorch's default is."""
    return torch.tensor(numbers, dtype=torch.float32)


class AlignedBeamGenerator(SequenceGeneratorWithAlignment, WithAttention, BeamGenerator):
    """``--print-alignment``: stock reads the alignment of every hypothesis off its attention."""
