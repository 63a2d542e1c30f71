"""Beam search over a batch: one window with the prefixes that all sentences ask for, one table of the best tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_aggdec.options.options import Options
from fairseq_aggdec.search.beam.budget import NOTHING_AHEAD, Guess, Plan
from fairseq_aggdec.search.beam.rules import Table
from fairseq_aggdec.search.beam.search import SentenceSearch
from fairseq_aggdec.search.beam.tables import best_tokens
from fairseq_aggdec.search.beam.tree import NOTHING
from fairseq_aggdec.search.state import remaining
from fairseq_aggdec.windows.draft import Kept
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import TreeWindow
from fairseq_aggdec.windows.window import Said


def nothing_ahead(sentences: int) -> Plan:
    return NOTHING_AHEAD


@dataclass
class BeamSearch:
    """The searches of a batch.

    Attributes:
        rows: the unfinished ones.
        options: generation options.
        plan: number of sentences -> what the next call may evaluate ahead.
        device: of the models.
        foretell: is shown the searches and what was said after a call whose plan asks for it, see
            :class:`~fairseq_aggdec.search.beam.generator.Foreteller`.
        watch: is shown the searches after every call.
        observe: is told why prefixes were thought to be needed, and whether they were, as soon as that is known.
    """

    rows: list[SentenceSearch]
    options: Options
    plan: Callable[[int], Plan]
    device: torch.device
    foretell: Callable[[Sequence[SentenceSearch], Said], None] | None = None
    watch: Callable[[Sequence[SentenceSearch]], None] | None = None
    observe: Callable[[Guess, bool], None] | None = None

    def ask(self) -> TreeWindow:
        """The requested prefixes of every sentence; one copy to the device."""
        self.planned = self.plan(len(self.rows))
        self.requests = [search.requests(self.planned) for search in self.rows]
        starts = [search.tree.places for search in self.rows]
        seen: list[int] = []
        tokens: list[int] = []
        depths: list[int] = []
        needed: list[int] = []
        # Also where nothing is banned in this window: a draft may not change how a score is rounded.
        self.banned: list[tuple[int, int]] | None = (
            [] if self.options.no_repeat_ngram_size > 0 else None
        )
        for search, nodes in zip(self.rows, self.requests, strict=True):
            tree = search.tree
            placed = tree.place(nodes)
            if self.banned is not None and tree.ngrams is not None:
                for index, node in enumerate(nodes, len(seen)):
                    self.banned += [(index, token) for token in tree.ngrams.banned(node)]
            seen += placed
            tokens += [tree.tokens[node] for node in nodes]
            own = [tree.depths[node] for node in nodes]
            needed += map(search.rules.wanted, own)
            depths += own
        widths = [len(nodes) for nodes in self.requests]
        window = TreeWindow(tokens, starts, widths, depths, seen, self.device)
        numbers = to_device([*tokens, *depths, *needed], self.device)  # at once
        window.tokens, window.depths, self.wanted = numbers.view(3, -1).unbind(0)
        return window

    def take(self, window: TreeWindow, said: Said) -> Kept | None:
        """Searches on; one copy to the host."""
        logits, options = said.logits, self.options
        count = min(options.beam_size + 1, logits.size(1))
        table = best_tokens(
            logits,
            count,
            self.wanted,
            options.pad,
            options.unk,
            options.unk_penalty,
            self.banned,
        )
        tables = self.tables(table.cpu())
        for search, nodes, found in zip(self.rows, self.requests, tables, strict=True):
            search.receive(nodes, found)
            search.advance()
            if self.observe is not None:
                for guess, used in search.learned():
                    self.observe(guess, used)
        if self.watch is not None:
            self.watch(self.rows)
        if self.foretell is not None and self.planned.foretold >= 0:
            self.foretell(self.rows, said)
        keep = remaining([not search.done for search in self.rows])
        if keep is None:
            return None
        self.rows = [self.rows[row] for row in keep]
        return Kept(keep)

    def tables(self, table: Tensor) -> list[list[Table]]:
        """What the rules of each sentence make of :func:`best_tokens`, on the host."""
        count = table.size(1) // 2
        words = table[:, count : 2 * count].int()
        tables, at = [], iter(zip(table.tolist(), words.tolist(), strict=True))
        for search, nodes in zip(self.rows, self.requests, strict=True):
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
