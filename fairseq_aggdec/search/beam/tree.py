"""The prefixes that the beam search of one sentence has looked at."""

from collections.abc import Collection
from dataclasses import dataclass, field

from fairseq_aggdec.options.hypotheses import Hypothesis

ROOT = 0
# (sum of log-probabilities in nats, node)
Prefix = tuple[float, int]


@dataclass(frozen=True)
class Ending:
    """A finished hypothesis: the prefix ``node`` and ``</s>``, with the sum of log-probabilities in nats."""

    total: float
    node: int


@dataclass
class Tree:
    """A tree of prefixes, each held once whatever hypotheses share it; nodes are numbered as they appear.

    Attributes:
        parents, tokens: of every node; the root's token is the start symbol.
        totals: sum of log-probabilities in nats of every node that was in the beam.
        placed: the nodes that were evaluated, in the order of their places in the cache.
        used: those whose tables the search has needed.
    """

    parents: list[int]
    tokens: list[int]
    totals: dict[int, float] = field(default_factory=dict)
    placed: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        for node in range(1, len(self.tokens)):
            self._children[self.parents[node], self.tokens[node]] = node

    @property
    def places(self) -> int:
        """Nodes evaluated so far."""
        return len(self.placed)

    def child(self, node: int, token: int) -> int:
        """The node of ``node``'s prefix and one token more."""
        node_behind = self._children.setdefault((node, token), len(self.tokens))
        if node_behind == len(self.tokens):
            self.parents.append(node)
            self.tokens.append(token)
        return node_behind

    def path(self, node: int) -> list[int]:
        """The nodes that a prefix consists of, the root first."""
        nodes = [node]
        while node != ROOT:
            node = self.parents[node]
            nodes.append(node)
        return nodes[::-1]

    def words(self, node: int) -> list[int]:
        """The tokens of a prefix, without the start symbol."""
        return [self.tokens[one] for one in self.path(node)[1:]]


@dataclass
class SearchedTree:
    """Tells how a sentence was searched.

    Attributes:
        index: of the sentence in its batch.
        tree: all prefixes that were looked at.
        beams: (sum of log-probabilities, prefix) of every unfinished hypothesis, best first, after each step.
        endings: finished hypotheses in the order of finishing.
        done: nothing is left to be searched.
        nodes_of_calls: the prefixes that each call of the decoder evaluated.
        gains: by how many tokens the hypotheses grew after each call.
        ahead: prefixes that were evaluated before the search waited for them.
        ranked: all hypotheses of a finished search, best first, as the generator has returned them.
    """

    index: int
    tree: Tree
    beams: list[list[Prefix]] = field(default_factory=lambda: [[(0.0, ROOT)]])
    endings: list[Ending] = field(default_factory=list)
    done: bool = False
    nodes_of_calls: list[list[int]] = field(default_factory=list)
    gains: list[int] = field(default_factory=list)
    ahead: Collection[int] = ()
    ranked: list[Hypothesis] = field(default_factory=list)

    @property
    def active(self) -> list[Prefix]:
        """The unfinished hypotheses."""
        return self.beams[-1]

    @property
    def depth(self) -> int:
        """Tokens of each unfinished hypothesis."""
        return len(self.beams) - 1

    @property
    def calls(self) -> int:
        """Tells how often prefixes were evaluated."""
        return len(self.nodes_of_calls)

    @property
    def history(self) -> list[list[int]]:
        """The best unfinished hypothesis before each call."""
        texts, depth = [], 0
        for gain in self.gains:
            texts.append(self.tree.words(self.beams[depth][0][1]))
            depth += gain
        return texts
