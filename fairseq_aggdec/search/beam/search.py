"""Beam search over a tree of prefixes, run on the host: it stops where a prefix has not been evaluated, asks for that
one, and for those that it will probably need next.

Drafting is the same search run ahead. Where a prefix has no table yet, the table of a prefix that is like it stands
in: the one that the same words led to elsewhere in the tree (:class:`~fairseq_aggdec.search.beam.tree.Tree`). Every
prefix whose table the predicted search reads is requested if that is probably worth it, in the order of steps. So
what is drafted are not texts, one per hypothesis, but whatever the search will look at, hypotheses that are not born
yet included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fairseq_aggdec.search.beam.budget import ALIKE, PIECE, PRIORS, TEXT, Guess, Plan
from fairseq_aggdec.search.beam.rules import Prefix, SentenceRules, Table, step
from fairseq_aggdec.search.beam.tree import ROOT, Tree
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError

# Calls of a sentence after which the budget is told what became of the prefixes; long outputs have many.
LEARN_EVERY = 8
LAST = {why: len(priors) - 1 for why, priors in PRIORS.items()}


@dataclass(frozen=True)
class Ending:
    """A finished hypothesis: the prefix ``node`` and ``</s>``, with the sum of log-probabilities in nats."""

    total: float
    node: int


class DraftedText(Protocol):
    """What an output may resemble, as a whole or in pieces."""

    @property
    def beginning(self) -> Sequence[int]:
        """What the output may begin with."""

    def behind(self, tree: Tree, node: int, most: int) -> Sequence[int]:
        """At most ``most`` tokens that may follow a prefix; none where nothing is known of it."""


@dataclass
class SentenceSearch:
    """The search of one sentence.

    Attributes:
        index: of the sentence in its batch.
        rules: generation options.
        tree: all prefixes that were looked at.
        text: what is drafted; None: nothing is known.
        beams: (sum of log-probabilities, prefix) of every unfinished hypothesis, best first, after each step.
        depth: tokens of each after the last one.
        endings: finished hypotheses in the order of finishing.
        done: nothing is left to be searched.
        ahead: prefixes that were requested before the search waited for them, and why.
        waiting: prefixes that were thought to be needed, and why, requested or not; until :meth:`learned` says more.
        missing: prefixes that the search waits for.
        calls: how often prefixes were evaluated.
        gains: by how many tokens the hypotheses grew after each call.
        plans: of each call.
        asked: the prefixes that each call evaluated.
        history: the best unfinished hypothesis before each call, when asked for.
    """

    index: int
    rules: SentenceRules
    tree: Tree
    text: DraftedText | None = None
    beams: list[list[Prefix]] = field(default_factory=lambda: [[(0.0, ROOT)]])
    depth: int = 0
    endings: list[Ending] = field(default_factory=list)
    done: bool = False
    ahead: dict[int, Guess] = field(default_factory=dict)
    waiting: list[tuple[int, Guess]] = field(default_factory=list)
    missing: list[int] = field(default_factory=lambda: [ROOT])
    calls: int = 0
    gains: list[int] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)
    history: list[list[int]] | None = None

    @property
    def active(self) -> list[Prefix]:
        """The unfinished hypotheses."""
        return self.beams[-1]

    def advance(self) -> None:
        """Searches on as far as tables go.

        Raises:
            NonFiniteError: the model gave no numbers where the search needs them.
        """
        tree, rules, before = self.tree, self.rules, self.depth
        while not self.done:
            found = step(self.active, tree.tables.__getitem__, self.depth, rules)
            if found.missing:
                self.missing = found.missing
                break
            tree.used.update(found.read)
            if tree.broken and not tree.broken.isdisjoint(found.read):
                raise NonFiniteError(self.index)
            room = rules.beam - len(self.endings)
            self.endings += [Ending(total, node) for total, node, _ in found.ended[:room]]
            self.beams.append(tree.grown(found.going_on))
            tree.totals.update((node, total) for total, node in self.active)
            self.depth += 1
            self.done = len(self.endings) == rules.beam or not self.active
        self.gains.append(self.depth - before)

    def requests(self, plan: Plan) -> list[int]:
        """Prefixes to evaluate, parents first: what the search waits for, then what it will probably need."""
        self.calls += 1
        if self.history is not None:
            self.history.append(self.tree.words(self.active[0][1]))
        self.plans.append(plan)
        wanted = list(self.missing)
        if self.depth == 0:
            self._draft_text(wanted, plan)
        else:
            if self.text is not None and (plan.piece or plan.learn):
                self._draft_piece(self.text, wanted, plan)
            foretold = plan.foretold >= 0 and self.tree.foretold
            if plan.farthest >= 0 or plan.learn or foretold:
                self._look_ahead(wanted, plan)
        self.asked.append(wanted)
        return wanted

    def _draft_text(self, wanted: list[int], plan: Plan) -> None:
        """Appends the prefixes that are the beginnings of the text."""
        if self.text is not None:
            tokens = self.text.beginning[: min(plan.text, self.rules.limit)]
            self._append(ROOT, tokens, wanted, set(wanted), (TEXT, 0))

    def _append(
        self, node: int, tokens: Sequence[int], wanted: list[int], requested: set[int], guess: Guess
    ) -> None:
        """Appends the prefixes that go on behind a node as a text does, as far as no n-gram is repeated."""
        tree = self.tree
        for token in tokens:
            if tree.ngrams is not None and token in tree.ngrams.banned(node):
                return
            node = tree.child(node, token)
            if tree.tables[node] is None and node not in requested:
                wanted.append(node)
                requested.add(node)
                self.ahead[node] = guess
                self.waiting.append((node, guess))

    def _draft_piece(self, text: DraftedText, wanted: list[int], plan: Plan) -> None:
        """Appends what follows in the text behind the best hypothesis, as far as tables lead along it."""
        tree, rules, requested = self.tree, self.rules, set(wanted)
        node, left = self.active[0][1], max(plan.piece, 1)
        while left and (table := tree.tables[node]) is not None:
            if not table[0] or table[0][0] == rules.eos:
                return
            below = tree.child(node, table[0][0])
            if tree.tables[below] is None and below not in requested:
                break
            node, left = below, left - 1
        left = min(left, rules.limit - tree.depths[node], plan.most - len(wanted))
        tokens = text.behind(tree, node, left) if left > 0 else ()
        if plan.piece:
            self._append(node, tokens, wanted, requested, (PIECE, 0))
        elif tokens:
            self.waiting.append((tree.child(node, tokens[0]), (PIECE, 0)))

    def _look_ahead(self, wanted: list[int], plan: Plan) -> None:
        """Searches on over predicted tables; appends the prefixes that it needs and that are worth it.

        A prefix can be requested only if its parent was evaluated or requested. So the search ahead ends when no
        hypothesis has such a parent: no later one can have it.
        """
        tree, rules, ahead = self.tree, self.rules, self.ahead
        tree.start_predicting()
        requested = set(wanted)
        active, ended, depth = self.active, len(self.endings), self.depth
        while active and ended < rules.beam and depth <= rules.limit:
            found = step(active, tree.predicted, depth, rules)
            best, totals = active[0][0], {node: total for total, node in active}
            for node in found.read:
                if tree.tables[node] is not None or node in requested:
                    continue
                why = tree.foreseen(node, requested)
                if why is None:
                    continue
                gap, last = int(best - totals[node]), LAST[why]
                if gap > last:
                    gap = last  # the farthest are learned together
                if gap > (plan.farthest if why == ALIKE else plan.foretold):
                    if (
                        why == ALIKE
                    ):  # whether it would have been needed is known without evaluating it
                        self.waiting.append((node, (why, gap)))
                    continue
                if len(wanted) >= plan.most:
                    return
                wanted.append(node)
                requested.add(node)
                ahead[node] = (why, gap)
                self.waiting.append((node, (why, gap)))
            if not any(tree.tables[node] or node in requested for _, node, _ in found.going_on):
                return
            ended += len(found.ended)
            active = tree.grown(found.going_on)
            depth += 1

    def worth(self) -> list[tuple[float, float]]:
        """What each call with a search ahead over prefixes that are alike replaced, and what it cost, in plain calls.

        A plain call evaluates what the search waits for and takes it on by one token. A sentence's first call has no
        search ahead.
        """
        needed = len(self.tree.used) / max(1, self.depth)  # prefixes per token
        calls = list(zip(self.plans, self.gains, self.asked, strict=True))
        return [
            (gain * (1.0 + plan.prefix_cost * needed), 1.0 + plan.prefix_cost * len(asked))
            for plan, gain, asked in calls[1:]
            if plan.farthest >= 0
        ]

    def outcome(self) -> list[tuple[Guess, bool]]:
        """Of every prefix that was evaluated ahead: why, and whether it was needed."""
        return [(guess, node in self.tree.used) for node, guess in self.ahead.items()]

    def learned(self) -> list[tuple[Guess, bool]]:
        """What has become known of late: why prefixes were thought to be needed, and whether they were."""
        if not self.done and self.calls % LEARN_EVERY:
            return []
        used, (parents, depths) = self.tree.used, (self.tree.parents, self.tree.depths)
        known, self.waiting = self.waiting, []
        found = []
        for node, guess in known:
            if depths[node] >= self.depth and not self.done:
                self.waiting.append((node, guess))
                continue
            if guess[0] != PIECE:
                found.append((guess, node in used))
            # A token is a copy as the one before is: where that was none, nothing is learned.
            if guess[0] in (PIECE, TEXT) and parents[node] in used:
                found.append(((PIECE, 0), node in used))
        return found

    def count(self, counters: Counters) -> None:
        """Adds this sentence to the statistics; the calls of a batch are counted apart."""
        counters.sentences += 1
        counters.iterations += self.calls
        counters.nodes += self.tree.places
        counters.nodes_used += len(self.tree.used)
        counters.drafted += len(self.ahead)
        counters.accepted += sum(used for _, used in self.outcome())
        counters.emitted.update(self.gains)

    def receive(self, nodes: Sequence[int], tables: Sequence[Table]) -> None:
        """Takes up the tables of the prefixes that were requested."""
        for node, table in zip(nodes, tables, strict=True):
            self.tree.evaluated(node, table)
