"""Beam search of a batch over trees of prefixes, as plain as can be: what the search waits for is evaluated, no more.

The compiled library (``kernels/source/search/beam.h``) has the same search, and evaluates prefixes before it asks for
them. This one is what that is tested against, and decodes where there is no such library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fairseq_aggdec.options.ngrams import Ngrams
from fairseq_aggdec.options.options import Options
from fairseq_aggdec.search.beam.rules import SentenceRules, Table, step
from fairseq_aggdec.search.beam.tables import table_of
from fairseq_aggdec.search.beam.tree import ROOT, Ending, SearchedTree, Tree
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.state import remaining
from fairseq_aggdec.windows.draft import Kept
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import TreeWindow
from fairseq_aggdec.windows.window import DecoderOutput


class SentenceSearch(SearchedTree):
    """The search of one sentence, which goes one step further with each call.

    Args:
        index: of the sentence in its batch.
        rules: generation options.
        start: the start symbol.
        ngram_size: n-grams of this size occur at most once; 0: any.
    """

    def __init__(self, index: int, rules: SentenceRules, start: int, ngram_size: int = 0):
        super().__init__(index, Tree([ROOT], [start]), source_length=rules.source_length)
        self.rules, self.ngram_size = rules, ngram_size
        self.seen: dict[
            int, int
        ] = {}  # places in the cache of a node and those above it, as the bits of a number

    def request(self) -> list[int]:
        """The prefixes to evaluate: those in the beam."""
        tree, nodes = self.tree, [node for _, node in self.active]
        for node in nodes:
            above = 0 if node == ROOT else self.seen[tree.parents[node]]
            self.seen[node] = above | 1 << tree.places
            tree.placed.append(node)
        self.asked.append(nodes)
        return nodes

    def banned(self, node: int) -> list[int]:
        """The tokens that would repeat an n-gram behind a prefix."""
        if not self.ngram_size:
            return []
        ngrams = Ngrams(self.ngram_size)
        ngrams.take_up([self.tree.tokens[ROOT], *self.tree.words(node)])
        return sorted(token for _, token in ngrams.repeats(()))

    def receive(self, tables: Sequence[Table | None]) -> None:
        """Goes on with what may follow each prefix of the beam, None where the model gave no numbers.

        Raises:
            NonFiniteError: the search needs such a table.
        """
        tree, nodes = self.tree, [node for _, node in self.active]
        known = {node: table or ((), ()) for node, table in zip(nodes, tables, strict=True)}
        found = step(self.active, known.__getitem__, self.depth, self.rules)
        tree.used.update(found.read)
        broken = [node for node, table in zip(nodes, tables, strict=True) if table is None]
        if not tree.used.isdisjoint(broken):
            raise NonFiniteError(self.index)
        room = self.rules.beam - len(self.endings)
        self.endings += [Ending(total, node) for total, node, _ in found.ended[:room]]
        self.beams.append([(total, tree.child(node, word)) for total, node, word in found.going_on])
        tree.totals.update((node, total) for total, node in self.active)
        self.gains.append(1)
        self.done = len(self.endings) == self.rules.beam or not self.active


@dataclass
class BeamSearch:
    """The searches of a batch.

    Attributes:
        rows: the unfinished ones.
        options: generation options.
        device: of the models.
        watch: is shown the searches after every call.
    """

    rows: list[SentenceSearch]
    options: Options
    device: torch.device
    watch: Callable[[Sequence[SearchedTree]], None] | None = None

    def next_window(self) -> TreeWindow:
        """The requested prefixes of every sentence; one copy to the device."""
        starts = [search.tree.places for search in self.rows]
        requests = [search.request() for search in self.rows]
        pairs = [
            (search, node) for search, own in zip(self.rows, requests, strict=True) for node in own
        ]
        tokens = [search.tree.tokens[node] for search, node in pairs]
        depths = [search.depth for search, _ in pairs]
        needed = [search.rules.wanted(search.depth) for search, _ in pairs]
        self.banned = [
            (place, token)
            for place, (search, node) in enumerate(pairs)
            for token in search.banned(node)
        ]
        seen = [search.seen[node] for search, node in pairs]
        window = TreeWindow(tokens, starts, list(map(len, requests)), depths, seen, self.device)
        numbers = to_device([*tokens, *depths, *needed], self.device)  # at once
        window.tokens, window.depths, self.wanted = numbers.view(3, -1).unbind(0)
        return window

    def update(self, window: TreeWindow, output: DecoderOutput) -> Kept | None:
        """Searches on; one copy to the host."""
        count = min(self.options.beam_size + 1, output.logits.size(1))
        table = table_of(output.logits, count, self.wanted, self.options, self.banned).cpu()
        for search, own in zip(self.rows, table.split(list(window.widths)), strict=True):
            search.receive([search.rules.read(search.depth, row) for row in own.tolist()])
        if self.watch is not None:
            self.watch(self.rows)
        keep = remaining([not search.done for search in self.rows])
        if keep is None:
            return None
        self.rows = [self.rows[row] for row in keep]
        return Kept(keep)


def count(searches: Sequence[SearchedTree], counters: Counters) -> None:
    """Adds the sentences of a batch to the statistics; the calls of a batch are counted apart."""
    for search in searches:
        counters.sentences += 1
        counters.iterations += search.calls
        counters.nodes += search.tree.places
        counters.nodes_used += len(search.tree.used)
        counters.emitted.update(search.gains)
