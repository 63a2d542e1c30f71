"""The prefixes that the beam search of one sentence has looked at, and which of them are like which."""

from collections.abc import Container, Sequence

from fairseq_aggdec.search.beam.budget import ALIKE, FORETOLD
from fairseq_aggdec.search.beam.ngrams import TreeNgrams
from fairseq_aggdec.search.beam.rules import Continuation, Prefix, Table

ROOT = 0
NOTHING: Table = ((), ())
# How far apart two prefixes that end in the same token may be for one to stand in for the other.
NEAR = 4


class Tree:
    """A tree of prefixes, each held once whatever hypotheses share it; nodes are numbered as they appear.

    Args:
        start: the start symbol, the root's token.
        ngram_size: n-grams of this size occur at most once in a prefix; 0 for no limit.

    Attributes:
        parents, tokens, depths: of every node.
        tables: what follows a node, None until it was evaluated.
        seen: places in the cache of a node and its ancestors, as the bits of a number; 0 until it was evaluated.
        used: nodes whose tables the search has needed.
        broken: nodes for which the model gave no numbers.
        foretold: of some nodes, what a drafter expects 1, 2, ... tokens behind them, whatever comes between.
        totals: sum of log-probabilities of every node that was in the beam, nats.
        places: nodes evaluated so far, which is the place in the cache of the next one.
        placed: these nodes, in the order of their places.
        ngrams: knows what would repeat an n-gram; None where that may be.
    """

    def __init__(self, start: int, ngram_size: int = 0):
        self.parents, self.tokens, self.depths = [ROOT], [start], [0]
        self.tables: list[Table | None] = [None]
        self.seen = [0]
        self.used: set[int] = set()
        self.broken: set[int] = set()
        self.foretold: dict[int, Sequence[Table]] = {}
        self.totals: dict[int, float] = {}
        self.places, self.placed = 0, list[int]()
        self.ngrams = TreeNgrams(self, ngram_size) if ngram_size > 0 else None
        self._children: list[dict[int, int]] = [{}]
        self._evaluated: list[int] = []
        self._indexed = 0
        # token -> depth -> token before -> index in _evaluated of the last such node; behind None, of the last of all
        self._by_token: dict[int, dict[int, dict[int | None, int]]] = {}
        self._likes: dict[int, int | None] = {}

    def child(self, node: int, token: int) -> int:
        """The node of ``node``'s prefix and one token more."""
        children = self._children[node]
        found = children.get(token)
        if found is None:
            found = children[token] = len(self.tokens)
            self.parents.append(node)
            self.tokens.append(token)
            self.depths.append(self.depths[node] + 1)
            self.tables.append(None)
            self.seen.append(0)
            self._children.append({})
        return found

    def children(self, node: int) -> list[int]:
        """The prefixes of one token more that were looked at."""
        return list(self._children[node].values())

    def grown(self, continuations: Sequence[Continuation]) -> list[Prefix]:
        """The prefixes that continuations are."""
        return [(total, self.child(node, token)) for total, node, token in continuations]

    def words(self, node: int) -> list[int]:
        """The tokens of a prefix, without the start symbol."""
        tokens = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def totals_of(self, node: int) -> list[float]:
        """Sums of log-probabilities after each token of a prefix that was in the beam."""
        totals = []
        while node != ROOT:
            totals.append(self.totals[node])
            node = self.parents[node]
        return totals[::-1]

    def place(self, nodes: Sequence[int]) -> list[int]:
        """Gives nodes, parents first, the next places in the cache; returns what each of them sees."""
        for node in nodes:
            above = self.seen[self.parents[node]] if node != ROOT else 0
            self.seen[node] = above | 1 << self.places
            self.places += 1
        self.placed += nodes
        if self.ngrams is not None:
            self.ngrams.take_up()
        return [self.seen[node] for node in nodes]

    def evaluated(self, node: int, table: Table) -> None:
        """Notes what follows a node."""
        self.tables[node] = table
        self._evaluated.append(node)

    def start_predicting(self) -> None:
        """Forgets which nodes were thought to be like which; called after tables have come in."""
        self._likes = {}
        for index in range(self._indexed, len(self._evaluated)):
            node = self._evaluated[index]
            depths = self._by_token.setdefault(self.tokens[node], {})
            lasts = depths.setdefault(self.depths[node], {})
            lasts[None] = lasts[self.tokens[self.parents[node]]] = index
        self._indexed = len(self._evaluated)

    def predicted(self, node: int) -> Table:
        """The table of a node; where it has none that of one that is like it, else what was foretold; else empty."""
        like = self._like(node)
        found = (self.foretold_at(node) if like is None else self.tables[like]) or NOTHING
        if self.ngrams is None or like == node:
            return found
        banned = self.ngrams.banned(node)
        if banned.isdisjoint(found[0]):
            return found
        pairs = [pair for pair in zip(*found, strict=True) if pair[0] not in banned]
        return [token for token, _ in pairs], [value for _, value in pairs]

    def foretold_at(self, node: int) -> Table | None:
        """What was foretold for the place of a node, by the nearest of those before it that has read so far."""
        if not self.foretold:
            return None
        above = node
        for distance in range(self.depths[node]):
            above = self.parents[above]
            tables = self.foretold.get(above)
            if tables is not None:
                return tables[distance] if distance < len(tables) else None
        return None

    def foreseen(self, node: int, requested: Container[int]) -> str | None:
        """Why a node may be needed: its parent was evaluated, or the two are like others, or it was foretold; None: it
        is not known.

        Its parent has keys and values then, or will have them in the same call.
        """
        parent = self.parents[node]
        if self.tables[parent] is not None:
            return ALIKE
        if parent not in requested:
            return None
        if self._like(parent) is None:
            return None if self.foretold_at(parent) is None else FORETOLD
        return None if self._like(node) is None else ALIKE

    def _like(self, node: int) -> int | None:
        if self.tables[node] is not None:
            return node
        if node not in self._likes:
            self._likes[node] = self._find_like(node, self._like(self.parents[node]))
        return self._likes[node]

    def _find_like(self, node: int, above: int | None) -> int | None:
        """An evaluated node whose continuations are probably those of ``node``.

        Args:
            above: such a node for its parent.

        Returns:
            the child of ``above`` with the same token; else, of the nodes with this token near the place where that
            would be, first those behind the same token, then the nearest; else the sibling that the token
            replaces; else None.
        """
        token = self.tokens[node]
        if above is not None:
            found = self._children[above].get(token)
            if found is not None and self.tables[found] is not None:
                return found
        near = self.depths[node] if above is None else self.depths[above] + 1
        same, behind_same = self._nearest(token, self.tokens[self.parents[node]], near)
        known = above == self.parents[node]
        if same is not None and (known or behind_same):
            return same
        if above is None or not known:
            return None
        for other in (self.tables[above] or NOTHING)[0]:
            found = self._children[above].get(other)
            if found is not None and self.tables[found] is not None:
                return found
        return None

    def _nearest(self, token: int, before: int, depth: int) -> tuple[int | None, bool]:
        """The evaluated node with ``token`` that is nearest to ``depth``, and whether ``before`` precedes it.

        Other tokens before it count as ``NEAR / 2`` tokens farther. Of equally near nodes the last evaluated wins.
        """
        distance, best, behind = 2 * NEAR + 2, -1, False
        depths = self._by_token.get(token)
        if depths is None:
            return None, False
        for at in range(
            depth - NEAR, depth + NEAR + 1
        ):  # not all of them: a token may be everywhere
            lasts = depths.get(at)
            if lasts is None:
                continue
            away = 2 * abs(at - depth)
            index = lasts.get(before, -1)
            same = index >= 0
            if not same:
                index, away = lasts[None], away + NEAR
            if away < distance or (away == distance and index > best):
                distance, best, behind = away, index, same
        return (None if best < 0 else self._evaluated[best]), behind
