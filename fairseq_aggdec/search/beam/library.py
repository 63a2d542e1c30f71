"""Beam search in the compiled library: whole batches in one call, or window by window where Python reads these."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from fairseq_aggdec.options.hypotheses import Hypothesis, of_numbers
from fairseq_aggdec.options.options import Limits, Options
from fairseq_aggdec.search.beam.budget import Budget
from fairseq_aggdec.search.beam.tree import Ending, SearchedTree, Tree
from fairseq_aggdec.search.compiled.rules import rule_options
from fairseq_aggdec.search.compiled.searches import (
    MATCHES,
    BeamOptionsStruct,
    Outputs,
    TreeStruct,
    WholeSearch,
    address,
    numbers,
)
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError, check_scores
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.windows.draft import NO_COPIES, Copies
from fairseq_aggdec.windows.transfer import int64_array


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
        ruled = beam_rules(options, limits, prefixes)
        call = beam_options(options, limits, ruled, start)
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
        nodes_of_calls: list[list[int]] = [[] for _ in range(view.calls)]
        for node in placed:
            if calls[node] <= view.calls:
                nodes_of_calls[calls[node] - 1].append(node)
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
            nodes_of_calls,
            numbers(view.gains, view.calls),
            {node for node in placed if reasons[node]},
        )

    def left(self, most: int) -> list[int]:
        """The sentences that have not ended, in any number."""
        request = self.ask()
        widths = numbers(request.widths, request.rows) if request else []
        return [row for row, width in enumerate(widths) if width]

    def outputs(self, counters: Counters) -> Outputs:
        """The endings of all sentences in the order of finishing, when the search has come to its end; counts them.

        Raises:
            NonFiniteError: the model gave no numbers where the search needs them.
        """
        outputs = Outputs(self, self.sentences, self.lengths)
        result = outputs.result
        if result.broken >= 0:
            raise NonFiniteError(result.broken)
        emitted, drafted, accepted = outputs.iterations()
        counters.sentences += self.sentences
        counters.iterations += len(emitted)
        counters.nodes += result.nodes
        counters.nodes_used += result.used
        counters.drafted += sum(drafted)
        counters.accepted += sum(accepted)
        counters.emitted.update(emitted)
        return outputs


def beam_rules(options: Options, limits: Limits, prefixes: Sequence[Sequence[int]]) -> Any:
    """The structure of the rules of a beam search: all sentences of a batch end with the longest."""
    count, strict = len(limits.ends), limits.ends if limits.exact else [0] * len(limits.ends)
    ends, floors = [limits.longest] * count, [limits.floor] * count
    return rule_options(Rules.of(options), ends, floors, strict, prefixes)


def beam_options(options: Options, limits: Limits, ruled: Any, start: int) -> Any:
    """The structure of the options that every beam search reads; arguments as of :class:`BeamLibrary`.

    Args:
        ruled: the structure of the rules.
    """
    sizes = len(limits.ends), options.beam_size, start, torch.get_num_threads(), limits.longest
    call = BeamOptionsStruct(ruled, *sizes)
    call.held = ruled.held  # alive
    return call


def hypotheses(outputs: Outputs, options: Options) -> list[list[Hypothesis]]:
    """The hypotheses of every sentence, in the order of finishing.

    Raises:
        NonFiniteError: the best of a sentence has scores that are not finite; those of others may be -inf.
    """
    ranked: list[list[Hypothesis]] = [[] for _ in outputs.rounds]
    sums: list[list[tuple[bool, float, float]]] = [[] for _ in outputs.rounds]
    each = zip(outputs.owners, outputs.tokens(), outputs.scores(), outputs.totals, strict=True)
    for owner, tokens, scores, total in each:
        score = options.score(total, len(tokens))
        if outputs.lengths is not None and len(tokens) - 1 > outputs.lengths[owner]:
            score = -math.inf
        ranked[owner].append(of_numbers(tokens, scores, score, outputs.rounds[owner]))
        sums[owner].append((math.isnan(score), score, total))
    check_scores(max(row_sums)[-1] if row_sums else 0.0 for row_sums in sums)
    return ranked
