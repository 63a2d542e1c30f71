"""Beam search as plain as can be, the reference of the compiled library and of the board on a device.

What ``SequenceGenerator._generate`` and ``BeamSearch.step`` decide from (beam, V) log-probabilities they decide from
the beam + 1 best of each hypothesis, and the log-probability of one more token: ``</s>``, or the one that is forced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from fairseq_aggdec.options.options import Options
from fairseq_aggdec.search.beam.tree import ROOT, Ending, Prefix, SearchedTree, Tree
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.rules import end_banned
from fairseq_aggdec.search.state import remaining
from fairseq_aggdec.windows.draft import Kept
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.tree_window import TreeWindow
from fairseq_aggdec.windows.window import DecoderOutput
from tests.reference.greedy import forced_token, repeating
from tests.tables import best_tokens

# The best continuations of a prefix, best first: tokens and their log-probabilities in nats.
Table = tuple[Sequence[int], Sequence[float]]


@dataclass(frozen=True)
class SentenceRules:
    """Generation options as they bear on one sentence.

    Attributes:
        eos: ``</s>``.
        beam: hypotheses.
        limit: output index at which ``</s>`` is forced (the maximum length; stock counts the padded width of a batch).
        floor: output index before which ``</s>`` is banned (``--min-len``), unless prefix tokens are forced there.
        prefix: output tokens forced by the caller (``--prefix-size``), ``pad`` where a position is free.
        pad: padding.
        bonus: the largest log-probability that a token may have, above 0 where ``<unk>`` is rewarded (``--unkpen``).
        source_length: of the source with ``</s>`` where the output must match it (``--match-source-len``), else None.
    """

    eos: int
    beam: int
    limit: int
    floor: int = 0
    prefix: Sequence[int] = ()
    pad: int = 1
    bonus: float = 0.0
    source_length: int | None = None

    def forced(self, depth: int) -> int | None:
        """The only token that may be written at an output index; None: the model chooses."""
        return forced_token(depth, self.limit, self.prefix, self.pad, self.eos)

    def wanted(self, depth: int) -> int:
        """The token whose log-probability a table at ``depth`` needs beside the best ones."""
        forced = self.forced(depth)
        return self.eos if forced is None else forced

    def read(self, depth: int, row: Sequence[float]) -> Table | None:
        """What may follow a prefix of ``depth`` tokens; None where the model gave no numbers.

        Args:
            row: of :func:`tests.tables.best_tokens`.
        """
        count = len(row) // 2
        if math.isnan(row[0]):
            return None
        return self.table(depth, [int(token) for token in row[count:-1]], row[:count], row[-1])

    def table(
        self, depth: int, tokens: Sequence[int], log_probs: Sequence[float], wanted: float
    ) -> Table:
        """What may follow a prefix of ``depth`` tokens.

        Args:
            tokens, log_probs: the beam + 1 best of the model, best first.
            wanted: log-probability of :meth:`wanted`.
        """
        forced = self.forced(depth)
        if forced is not None:
            tokens, log_probs = [forced], [wanted]
        elif end_banned(depth, self.floor, 0, len(self.prefix)):
            tokens, log_probs = without(self.eos, tokens, log_probs)
        if self.source_length is not None:
            # Stock gives a forced end the log-probability 0, beside whatever else may come.
            tokens, log_probs = without(self.eos, tokens, log_probs)
            if depth >= self.source_length:
                tokens, log_probs = _with_free_end(self.eos, tokens, log_probs)
        if log_probs and log_probs[-1] == -math.inf:
            possible = sum(value > -math.inf for value in log_probs)
            tokens, log_probs = tokens[:possible], log_probs[:possible]
        return tokens, log_probs


def without(
    token: int, tokens: Sequence[int], log_probs: Sequence[float]
) -> tuple[list[int], list[float]]:
    """A table less one token."""
    pairs = [pair for pair in zip(tokens, log_probs, strict=True) if pair[0] != token]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _with_free_end(
    eos: int, tokens: Sequence[int], log_probs: Sequence[float]
) -> tuple[list[int], list[float]]:
    """A table and ``</s>`` of log-probability 0, behind what ``--unkpen`` lifts above that."""
    above = sum(value > 0.0 for value in log_probs)
    return (
        [*tokens[:above], eos, *tokens[above:]],
        [*log_probs[:above], 0.0, *log_probs[above:]],
    )


# (sum of log-probabilities in nats, prefix, the token that follows)
Continuation = tuple[float, int, int]


class BeamStep(NamedTuple):
    """What one step of the search decides, or why it cannot.

    Attributes:
        going_on: the continuations of the next step, best first, at most ``beam``.
        ended: those that end here, best first.
        read: prefixes whose tables were needed.
        missing: prefixes whose tables are needed and are not there; nothing is decided then.
    """

    going_on: list[Continuation]
    ended: list[Continuation]
    read: list[int]
    missing: list[int]


def step(
    active: Sequence[Prefix],
    table: Callable[[int], Table | None],
    depth: int,
    rules: SentenceRules,
) -> BeamStep:
    """One step of stock beam search.

    Stock takes the 2 * beam best continuations. ``</s>`` counts among the first ``beam`` of them; elsewhere it neither
    ends a hypothesis nor goes on. The first ``beam`` others go on, so nothing behind these decides anything, and as
    no continuation scores more than its prefix, a prefix that scores less than the last of them needs no table.

    Args:
        active: the unfinished hypotheses, best first.
        table: of a prefix, None where it is not known.
        depth: tokens of each prefix.
        rules: generation options.
    """
    pool: list[Continuation] = []
    least, ending = -math.inf, False
    read, missing = [], []
    for score, node in active:
        if score + rules.bonus <= least:
            break
        known = table(node)
        if known is None:
            missing.append(node)
            continue
        read.append(node)
        grown, (tokens, log_probs) = len(pool), known
        ending = ending or rules.eos in tokens
        for token, log_prob in zip(tokens, log_probs, strict=True):
            total = score + log_prob
            if total <= least:
                break
            pool.append((total, node, token))
        if len(pool) > grown:
            least = _cut(pool, rules, ending)
    beam = rules.beam
    if depth < rules.limit and rules.forced(depth) == rules.eos:
        # Where the caller forces </s>, stock ends as many copies of the best hypothesis.
        return BeamStep([], pool[:1] * beam, read, missing)
    if not ending:
        return BeamStep(pool, [], read, missing)
    going_on = [item for item in pool if item[2] != rules.eos]
    return BeamStep(going_on, [item for item in pool[:beam] if item[2] == rules.eos], read, missing)


_score = itemgetter(0)


def _cut(pool: list[Continuation], rules: SentenceRules, ending: bool) -> float:
    """Sorts continuations and drops all behind the ``beam`` best that go on; returns the least score that counts.

    Of equal ones that of the earlier hypothesis comes first.

    Args:
        ending: whether the pool may hold ``</s>``; if it holds none, counting is not needed.
    """
    pool.sort(key=_score, reverse=True)
    if len(pool) < rules.beam:
        return -math.inf
    if not ending:
        del pool[rules.beam :]
        return pool[-1][0]
    going_on = 0
    for index, item in enumerate(pool):
        going_on += item[2] != rules.eos
        if going_on == rules.beam:
            del pool[index + 1 :]
            return item[0]
    return -math.inf


class SentenceSearch(SearchedTree):
    """The search of one sentence, which goes one step further with each call.

    Args:
        index: of the sentence in its batch.
        rules: generation options.
        start: the start symbol.
        ngram_size: n-grams of this size occur at most once; 0: any.
    """

    def __init__(self, index: int, rules: SentenceRules, start: int, ngram_size: int = 0):
        super().__init__(index, Tree([ROOT], [start]))
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
        self.nodes_of_calls.append(nodes)
        return nodes

    def banned(self, node: int) -> list[int]:
        """The tokens that would repeat an n-gram behind a prefix."""
        line = [self.tree.tokens[ROOT], *self.tree.words(node)]
        return sorted(repeating(line, self.ngram_size))

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
        symbols = self.options.pad, self.options.unk, self.options.unk_penalty
        table = best_tokens(output.logits, count, self.wanted, *symbols, self.banned).cpu()
        for search, own in zip(self.rows, table.split(list(window.widths)), strict=True):
            search.receive([search.rules.read(search.depth, row) for row in own.tolist()])
        if self.watch is not None:
            self.watch(self.rows)
        keep = remaining([not search.done for search in self.rows])
        if keep is None:
            return None
        self.rows = [self.rows[row] for row in keep]
        return Kept(keep)


def decode(model: Any, search: BeamSearch, counters: Counters) -> None:
    """Runs a search of windows to its end; ``counters`` gets the number of calls."""
    while search.rows:
        window = search.next_window()
        kept = search.update(window, model.read(window))
        if kept is not None:
            model.keep(kept)
        counters.calls += 1
