"""Where the prefixes of a tree stand in a text to copy from: what ``CopyText`` does for one output.

Every prefix is placed once, from where the prefix that is one token shorter stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED, Runs
from fairseq_aggdec.search.beam.tree import ROOT, Tree


class Place(NamedTuple):
    """Where a prefix stands in a text.

    Attributes:
        cursor: index of the token that it is thought to stand at, None where it stands nowhere.
        copied: index of the last token that it has copied.
        guessed: the cursor stands where a token was replaced, as nothing says otherwise.
        runs: of the prefix in the text; None where the prefix is the text up to the cursor.
    """

    cursor: int | None
    copied: int
    guessed: bool
    runs: Runs | None


class CopyPaths:
    """A text to copy from, and where the prefixes of one tree stand in it.

    Args:
        tokens, start, match: as for :class:`~fairseq_aggdec.drafters.copy.copy_text.CopyText`.

    Attributes:
        beginning: what is drafted first: the text up to the first token that must not be drafted.
    """

    def __init__(self, tokens: Sequence[int], start: int, match: str):
        self.tokens, self.match = [start, *tokens], match
        self.beginning = self._from(0, len(tokens))
        # Of the text up to each of its tokens, as far as prefixes have left it.
        self._whole = [Runs(self.tokens).then(start)]
        self._places = {ROOT: Place(0, 0, False, None)}

    def behind(self, tree: Tree, node: int, most: int) -> list[int]:
        """The text from where a prefix stands on, at most ``most`` tokens."""
        cursor = self.place(tree, node).cursor
        return [] if cursor is None else self._from(cursor, most)

    def _from(self, cursor: int, most: int) -> list[int]:
        draft = self.tokens[cursor + 1 : cursor + 1 + most]
        return draft[: draft.index(NEVER_DRAFTED)] if NEVER_DRAFTED in draft else draft

    def place(self, tree: Tree, node: int) -> Place:
        """Where a prefix stands."""
        path = []
        while node not in self._places:
            path.append(node)
            node = tree.parents[node]
        place = self._places[node]
        for below in reversed(path):
            place = self._places[below] = self._step(place, tree.tokens[below])
        return place

    def _step(self, before: Place, token: int) -> Place:
        """Where a prefix stands after one token more."""
        cursor, copied, guessed, runs = before
        follows = cursor is not None and self.tokens[cursor + 1 : cursor + 2] == [token]
        if runs is not None or not follows:
            runs = (self._up_to(cursor) if runs is None else runs).then(token)
        if follows:
            assert cursor is not None
            return Place(cursor + 1, copied, False, runs)
        assert runs is not None
        copied = copied if cursor is None else cursor
        found = runs.occurrence(self.match, copied)
        if self.match != "aligned" or found is not None or cursor is None:
            return Place(found, copied, False, runs)
        replaced = cursor if guessed else copied + 1
        inside = replaced + 1 < len(self.tokens)
        return Place(replaced if inside else None, copied, inside, runs)

    def _up_to(self, cursor: int | None) -> Runs:
        assert cursor is not None
        while len(self._whole) <= cursor:
            self._whole.append(self._whole[-1].then(self.tokens[len(self._whole)]))
        return self._whole[cursor]
