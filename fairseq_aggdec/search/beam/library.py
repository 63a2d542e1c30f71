"""Beam search in the compiled library: whole batches in one call, or window by window where Python reads these."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from fairseq_aggdec.options.hypotheses import Hypothesis, of_numbers
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.acceptance import exact
from fairseq_aggdec.search.beam.budget import Budget
from fairseq_aggdec.search.beam.tables import best_tokens
from fairseq_aggdec.search.beam.tree import Ending, SearchedTree, Tree
from fairseq_aggdec.search.compiled.searches import (
    MATCHES,
    BeamOptionsStruct,
    Outputs,
    TreeStruct,
    WholeSearch,
    address,
    numbers,
)
from fairseq_aggdec.search.compiled.windows import WindowReader
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError, check_scores
from fairseq_aggdec.windows.draft import NO_COPIES, Copies
from fairseq_aggdec.windows.transfer import int64_array, to_device
from fairseq_aggdec.windows.window import Window


class BeamLibrary(WholeSearch):
    """The search of a batch.

    Args:
        options: generation options. limits: of the batch.
        start: the start symbol.
        prefixes: output tokens forced by the caller, per sentence.
        texts: what the outputs may resemble.
        budget: what is known of prefixes that are evaluated ahead; None: none are.
    """

    def __init__(
        self,
        options: Options,
        limits: Limits,
        start: int,
        prefixes: Sequence[Sequence[int]],
        texts: Copies = NO_COPIES,
        budget: Budget | None = None,
    ):
        self.sentences, self.lengths = len(prefixes), limits.ends if limits.exact else None
        self.budget = budget  # alive
        ends = int64_array(limits.ends)
        call = beam_options(options, limits, ends, start)
        call.ngram = max(0, options.no_repeat_ngram_size)
        forced = int64_array(list(itertools.chain.from_iterable(prefixes)))
        call.prefix_size, call.prefixes = len(prefixes[0]), address(forced)
        tokens = int64_array(list(itertools.chain.from_iterable(texts.texts)))
        sizes = int64_array([len(text) for text in texts.texts])
        if texts.texts:
            call.texts, call.sizes = map(address, (tokens, sizes))
            call.match = MATCHES.index(texts.match)
        if budget is not None:
            call.budget = address(budget)
        super().__init__("beam", call)

    def trees(self) -> list[SearchedTree]:
        """Tells how each sentence was searched so far."""
        return [self._tree(index) for index in range(self.sentences)]

    def _tree(self, index: int) -> SearchedTree:
        view = TreeStruct()
        self.library.aggdec_beam_tree(self.handle, index, address(view))
        parents, tokens, places, calls, reasons, used = (
            numbers(getattr(view, name), view.nodes)
            for name in ("parents", "tokens", "places", "node_calls", "reasons", "used")
        )
        totals = numbers(view.totals, view.nodes)
        placed = sorted(
            (node for node in range(view.nodes) if places[node] >= 0), key=places.__getitem__
        )
        widths = numbers(view.widths, view.steps)
        flat = iter(numbers(view.beams, sum(widths)))
        asked: list[list[int]] = [[] for _ in range(view.calls)]
        for node in placed:
            if calls[node] <= view.calls:
                asked[calls[node] - 1].append(node)
        return SearchedTree(
            index,
            Tree(
                [max(above, 0) for above in parents],
                tokens,
                {node: total for node, total in enumerate(totals) if not math.isnan(total)},
                placed,
                {node for node in range(view.nodes) if used[node]},
            ),
            [[(totals[node], node) for node in itertools.islice(flat, width)] for width in widths],
            list(
                map(
                    Ending,
                    numbers(view.ended_totals, view.endings),
                    numbers(view.ended, view.endings),
                )
            ),
            bool(view.done),
            asked,
            numbers(view.gains, view.calls),
            {node for node in placed if reasons[node]},
        )

    def left(self, most: int) -> list[int]:
        """The sentences that have not ended, in any number."""
        asked = self.ask()
        widths = numbers(asked.widths, asked.rows) if asked else []
        return [row for row, width in enumerate(widths) if width]

    def outputs(self, counters: Counters) -> Outputs:
        """The endings of all sentences in the order of finishing, when the search has come to its end; counts them.

        Raises:
            NonFiniteError: the model gave no numbers where the search needs them.
        """
        outputs = Outputs(self, self.sentences, self.lengths)
        found = outputs.found
        if found.broken >= 0:
            raise NonFiniteError(found.broken)
        emitted, drafted, accepted = outputs.iterations()
        counters.sentences += self.sentences
        counters.iterations += len(emitted)
        counters.nodes += found.nodes
        counters.nodes_used += found.used
        counters.drafted += sum(drafted)
        counters.accepted += sum(accepted)
        counters.emitted.update(emitted)
        return outputs


def beam_options(options: Options, limits: Limits, ends: Any, start: int) -> Any:
    """The structure of the options that every beam search reads; arguments as of :class:`BeamLibrary`.

    Args:
        ends: those of ``limits`` as whole numbers, which it may point to.
    """
    own = len(ends), options.beam_size, options.eos, options.pad, options.unk, start
    call = BeamOptionsStruct(*own, torch.get_num_threads(), options.unk_penalty)
    call.limit, call.floor = limits.longest, limits.floor
    if limits.exact:
        call.lengths = address(ends)
    return call


class TableReader(WindowReader):
    """Runs a beam search window by window; the tables are made where the logits are.

    Args:
        options: generation options.
        model, device, counters: as of a :class:`~fairseq_aggdec.search.compiled.windows.WindowReader`.
    """

    def __init__(
        self,
        model: Any,
        device: torch.device,
        counters: Counters,
        options: Options,
    ):
        super().__init__(model, device, exact, counters)
        self.options = options

    def _take(self, search: Any, asked: Any, window: Window) -> None:
        """Searches on; one copy to the host."""
        pairs = iter(numbers(asked.banned, 2 * asked.pairs))
        banned = list(zip(pairs, pairs, strict=True))
        wanted = to_device(numbers(asked.needed, asked.count), self.device)
        options, logits = self.options, self.found.logits
        count = min(options.beam_size + 1, logits.size(1))
        symbols = options.pad, options.unk, options.unk_penalty
        best = best_tokens(logits, count, wanted, *symbols, banned)
        table = best.float().cpu().contiguous()
        search.library.aggdec_beam_take(search.handle, table.data_ptr(), count)


def hypotheses(outputs: Outputs, options: Options) -> list[list[Hypothesis]]:
    """The hypotheses of every sentence, in the order of finishing.

    Raises:
        NonFiniteError: the best of a sentence has scores that are not finite; those of others may be -inf.
    """
    found: list[list[Hypothesis]] = [[] for _ in outputs.rounds]
    sums: list[list[tuple[bool, float, float]]] = [[] for _ in outputs.rounds]
    each = zip(outputs.owners, outputs.tokens(), outputs.scores(), outputs.totals, strict=True)
    for owner, tokens, scores, total in each:
        score = options.score(total, len(tokens))
        if outputs.lengths is not None and len(tokens) - 1 > outputs.lengths[owner]:
            score = -math.inf
        found[owner].append(of_numbers(tokens, scores, score, outputs.rounds[owner]))
        sums[owner].append((math.isnan(score), score, total))
    check_scores(max(own)[-1] if own else 0.0 for own in sums)
    return found
