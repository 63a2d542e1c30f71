"""The n-grams of a tree's prefixes (``--no-repeat-ngram-size``): what would repeat one, without reading them."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from fairseq_aggdec.options.ngrams import NONE

if TYPE_CHECKING:
    from fairseq_aggdec.search.beam.tree import Tree

ROOT = 0


class TreeNgrams:
    """Which tokens would repeat an n-gram behind a node.

    An evaluated node knows its ancestors as the bits of a number, and so are known the places in the cache at which an
    n-gram with some beginning ends. Both together are those of the prefix: no prefix is read again.

    Args:
        tree: of prefixes.
        size: the n of the n-grams.
    """

    def __init__(self, tree: Tree, size: int):
        self.tree, self.size = tree, size
        self._ends: dict[tuple[int, ...], int] = {}  # first n - 1 tokens -> places, as bits
        self._tokens: list[int] = []  # of every place
        self._banned: dict[int, Set[int]] = {}

    def _context(self, node: int) -> tuple[int, ...] | None:
        """The last n - 1 tokens of a prefix, the last first; None where it is shorter."""
        tree, found = self.tree, list[int]()
        while len(found) < self.size - 1:
            found.append(tree.tokens[node])
            if node == ROOT:
                break
            node = tree.parents[node]
        return tuple(found) if len(found) == self.size - 1 else None

    def take_up(self) -> None:
        """Takes up the nodes that were given places in the cache."""
        tree = self.tree
        for place in range(len(self._tokens), tree.places):
            node = tree.placed[place]
            self._tokens.append(tree.tokens[node])
            context = None if node == ROOT else self._context(tree.parents[node])
            if context is not None:
                self._ends[context] = self._ends.get(context, 0) | 1 << place

    def banned(self, node: int) -> Set[int]:
        """The tokens that would repeat an n-gram behind a node; looked for once."""
        found = self._banned.get(node)
        if found is None:
            context = self._context(node)
            found = NONE if context is None else self._followers(node, context)
            self._banned[node] = found
        return found

    def _followers(self, node: int, context: tuple[int, ...]) -> Set[int]:
        """The tokens that follow such tokens in a prefix."""
        tree, found = self.tree, set[int]()
        while not tree.seen[node] and node != ROOT:  # not evaluated yet: a few nodes
            above = tree.parents[node]
            if self._context(above) == context:
                found.add(tree.tokens[node])
            node = above
        bits = tree.seen[node] & self._ends.get(context, 0)
        while bits:
            lowest = bits & -bits
            found.add(self._tokens[lowest.bit_length() - 1])
            bits ^= lowest
        return found or NONE
