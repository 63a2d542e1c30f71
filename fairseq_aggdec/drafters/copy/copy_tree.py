"""Copies that branch where the text was wrong before: what stood instead of a token is drafted beside it.

A copy of a text ends at the first token that the verifier replaces. The same tokens are replaced again and again: a
comma is missing before the same word, a word is misspelt in the same way. So it is remembered what was written instead
of each token, and how much of the text was passed over; where the token comes up again that is drafted beside it, the
rest of the text behind it. And where it is not known how much of the text a new token stands for, all answers that were
right before are drafted.

Worked example. ``,`` was written before ``that`` in one of two cases::

    text    she knew that he
    tree    she knew that he
                     , that he
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from fairseq_aggdec.budget.account import NodeBudget
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED, CopyText

# Tokens of a text that one written token may stand for; edits that are remembered of each token of a text.
PASSED, REMEMBERED = range(4), 8
# Copies of a token that are believed to have been right before any was seen, and how strongly, in copies, a token is
# believed to be like others.
PRIOR, LIKE_OTHERS = 1.0, 4.0
# Tokens behind an edit by which it is known where in the text the output goes on.
AGREE = 2


@dataclass(frozen=True)
class Edit:
    """A token that stood instead of ``passed`` tokens of a text: 0, it came before them; 1, it replaced one."""

    written: int
    passed: int


class Edits:
    """What was written instead of tokens of a text.

    Attributes:
        reached: of each token, how often its copy would have been the next token.
        copied: of each token, how often it was.
        known: of each token, how often each edit was.
        passed: number of tokens -> how many edits passed over that many.
    """

    def __init__(self) -> None:
        self.reached: Counter[int] = Counter()
        self.copied: Counter[int] = Counter()
        self.known: dict[int, Counter[Edit]] = defaultdict(Counter)
        self.passed: Counter[int] = Counter()

    def add(self, token: int, edit: Edit) -> None:
        known = self.known[token]
        known[edit] += 1
        self.passed[edit.passed] += 1
        if len(known) > REMEMBERED:
            del known[min(known, key=lambda other: (known[other], other is edit))]

    def copy(self, token: int, row: float, mean: float) -> float:
        """The chance of a token's copy, in a row whose copies have such a chance where those of all have such a mean:
        odds of row and token, multiplied."""
        seen = self.reached[token] + LIKE_OTHERS
        own = (self.copied[token] + LIKE_OTHERS * mean) / seen
        odds = odds_of(row) * odds_of(own) / odds_of(mean)
        return odds / (1.0 + odds)

    def of(self, token: int) -> list[tuple[Edit, float]]:
        """Edits and their chances."""
        if token not in self.known:
            return []
        times = self.reached[token] + PRIOR
        return [(edit, count / times) for edit, count in self.known[token].items()]

    def places(self, copied: int) -> list[tuple[int, float]]:
        """Places in the text where an output may be after ``copied`` copied tokens and another one; their chances."""
        times = self.passed.total() + PRIOR
        return [(copied + passed, self.passed[passed] / times) for passed in PASSED]


def odds_of(chance: float) -> float:
    """Of a chance, also where all or nothing that was seen stood."""
    chance = min(max(chance, 1e-6), 1.0 - 1e-6)
    return chance / (1.0 - chance)


class CopyStep(NamedTuple):
    """A token that may be written where an output stands in a text, the place where it stands then, and the edit that
    this would be; None: a copy."""

    token: int
    place: int
    edit: Edit | None


@dataclass
class CopyTree:
    """What is drafted of one text: ``steps``, each behind the one that it follows, and ``parents``, which those are,
    counted from 1; 0 is the last committed token."""

    steps: list[CopyStep] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)


class EditedText(NamedTuple):
    """A text to copy from.

    Attributes:
        tokens: the start symbol first, ``NEVER_DRAFTED`` where a token must not be drafted.
        edits: that are known.
        stands: the chance that a draft goes on by one token; mean: that of all sentences.
    """

    tokens: Sequence[int]
    edits: Edits
    stands: float
    mean: float

    def steps(self, place: int, copies_only: bool = False) -> list[tuple[float, CopyStep]]:
        """What may be written next, and its chances."""
        if place + 1 >= len(self.tokens) or self.tokens[place + 1] == NEVER_DRAFTED:
            return []
        token = self.tokens[place + 1]
        copied = self.edits.copy(token, self.stands, self.mean)
        known = [] if copies_only else self.edits.of(token)
        edited = [
            (share, CopyStep(edit.written, place + edit.passed, edit)) for edit, share in known
        ]
        return [(copied, CopyStep(token, place + 1, None)), *edited]


def grow(
    text: EditedText,
    starts: Sequence[tuple[int, float]],
    longest: int,
    nodes: int,
    fixed_cost: float = math.inf,
) -> CopyTree:
    """The likeliest nodes of a text's tree, chosen as in :func:`~fairseq_aggdec.drafters.trees.grow`.

    Args:
        text: is drafted.
        starts: places in it that the output may stand at, and their chances; where there are several it was edited just
            now. Two edits in a row are one of more tokens, of which the memory knows nothing.
        longest: path.
        nodes: how many tokens are wanted.
        fixed_cost: of an iteration, in nodes.
    """
    tree, taken, number = CopyTree(), set(), itertools.count()
    heap: list[tuple[float, int, int, int, CopyStep]] = []  # the first entry is minus the chance
    # What a token has to bring for its cost grows with every one that is taken: a chance of less is never enough.
    least = 1.0 / fixed_cost

    def extend(chance: float, node: int, depth: int, place: int, edited: bool) -> None:
        for share, step in text.steps(place, edited) if depth < longest else ():
            if chance * share > least or node == 0:
                heappush(heap, (-chance * share, next(number), node, depth + 1, step))

    for place, chance in starts:
        extend(chance, 0, 0, place, len(starts) > 1)
    expected = 1.0
    while heap and len(tree.steps) < nodes:
        cost, _, parent, depth, step = heappop(heap)
        if tree.steps and -cost * (fixed_cost + len(tree.steps)) <= expected:
            break
        if (parent, step.token) in taken:
            continue
        taken.add((parent, step.token))
        expected -= cost
        tree.steps.append(step)
        tree.parents.append(parent)
        extend(-cost, len(tree.steps), depth, step.place, step.edit is not None)
    return tree


class Pending(NamedTuple):
    """An edit of which it is not known yet how much of the text it passed over: the place in the text of the token that
    was rejected, and where in the output what stood instead is."""

    place: int
    written: int

    def passed(self, text: Sequence[int], output: Sequence[int], eos: int) -> Iterator[int]:
        """Numbers of tokens of the text behind which it goes on as the output does; none as long as that is short."""
        first = self.written + 1
        following = list(output[first : first + AGREE])
        if following[-1:] == [eos] or len(following) == AGREE:
            for passed in PASSED:
                rest = self.place + passed
                if [*text[rest : rest + AGREE], eos][: len(following)] == following:
                    yield passed


class CopyTrees:
    """Drafts trees of the texts of a batch, and learns from what became of them.

    Args:
        budget: how many tokens trees have.
        eos: end symbol of the output.
    """

    def __init__(self, budget: NodeBudget, eos: int):
        self.budget, self.eos = budget, eos
        self.edits = Edits()

    def start(self, rows: int) -> None:
        self.trees: list[CopyTree] = [CopyTree()] * rows
        self.pending: list[Pending | None] = [None] * rows

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.trees = [self.trees[row] for row in rows]
        self.pending = [self.pending[row] for row in rows]

    def grow(
        self, row: int, text: CopyText, stands: tuple[float, float], longest: int, cost: float
    ) -> CopyTree:
        """What is drafted behind the last token of a row of the batch.

        Args:
            text: knows where the output stands.
            stands: the chance that a draft of the row goes on by one token, and the mean of all sentences.
            longest: path.
            cost: of an iteration beside its tokens, in tokens.
        """
        starts = self._starts(text)
        asked = EditedText(text.tokens, self.edits, *stands)
        most = self.budget.most
        cost = cost if self.budget.learned else math.inf
        self.trees[row] = grow(asked, starts, longest, most, cost) if starts else CopyTree()
        return self.trees[row]

    def _starts(self, text: CopyText) -> list[tuple[int, float]]:
        if text.cursor is None:
            return []
        if not text.guessed:
            return [(text.cursor, 1.0)]
        chances = dict(self.edits.places(text.copied))
        # What would be drafted without trees is the likeliest as long as nothing is known.
        chances[text.cursor] = max(chances.get(text.cursor, 0.0), 1.0 - sum(chances.values()))
        return [(place, chance) for place, chance in chances.items() if chance > 0.0]

    def observe(
        self, row: int, text: CopyText, path: Sequence[int], output: Sequence[int]
    ) -> tuple[int, int]:
        """Learns from what became of the tree of a row of the batch, and tells the text where the output stands.

        Args:
            path: nodes that stand, counted from 1, the last committed token (0) first.
            output: of the row now, start symbol included.

        Returns:
            how many tokens were drafted one behind the other, as far as the first that does not stand, and how many
            stand.
        """
        tree, end = self.trees[row], path[-1]
        known = end or not text.guessed  # where the output stood
        self._resolve(row, text, output)
        edits = self.edits
        for step in (tree.steps[node - 1] for node in path[1:]):
            token, edit = step.token, step.edit
            if edit is None:
                edits.copied[token] += 1
            else:
                token = text.tokens[step.place - edit.passed + 1]
                edits.add(token, edit)
            edits.reached[token] += 1
        place = tree.steps[end - 1].place if end else text.cursor or 0
        children = [
            step for step, parent in zip(tree.steps, tree.parents, strict=True) if parent == end
        ]
        if end:
            text.arrive(place, len(output) - 1)
        copied = any(step.edit is None for step in children)
        if copied and known and output[-1] != self.eos:
            edits.reached[text.tokens[place + 1]] += 1
            self.pending[row] = Pending(place + 1, len(output) - 1)
        return len(path) - 1 + bool(children), len(path) - 1

    def _resolve(self, row: int, text: CopyText, output: Sequence[int]) -> None:
        """Remembers the edit that is pending, once it is known where the output went on."""
        pending = self.pending[row]
        passed = pending and next(pending.passed(text.tokens, output, self.eos), None)
        if pending is not None and passed is not None:
            edit = Edit(output[pending.written], passed)
            self.edits.add(text.tokens[pending.place], edit)
            self.pending[row] = None
