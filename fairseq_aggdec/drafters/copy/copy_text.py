"""Suffix matching: where an output stands in the text that is copied (Algorithm 1 of Ge et al., section 3.1).

Take the longest suffix of the output that occurs in the text. If it occurs once, the draft is what follows it there.
Shorter suffixes need no look: they occur wherever the longest one does. This is ``--variant iad-match=unique``. The
other kinds of match find a place more often; they change the speed, not the output.
"""

from collections.abc import Sequence

import numpy as np

NEVER_DRAFTED = -1


class CopyText:
    """One text to copy from, and the place in it that the output has reached.

    Args:
        tokens: the text in target ids without its end symbol, ``NEVER_DRAFTED`` where a token must not be drafted.
        start: start symbol of the output. It is put before the text, so the first draft is the whole text.
        match: which occurrence of the longest suffix counts if there are several (``iad-match``): none (``unique``),
            the first (``longest``), or the next one after the last copied token (``recent``). ``aligned`` is
            ``recent``; if no suffix occurs, it takes the rejected token as replaced by one other token.

    Attributes:
        cursor: index of the token in the text that the output stands at; None: nowhere.
        copied: index of the last token that was copied.
        guessed: ``aligned`` has set the cursor behind a token that it takes as replaced.
        followed: output tokens, start symbol included, that were followed so far.
        runs: for each index of the text, how many tokens up to it equal the end of the output; of the first ``read``
            output tokens. The longest suffix ends where the number is largest.
    """

    def __init__(self, tokens: Sequence[int], start: int, match: str):
        self.tokens = [start, *tokens]
        self.match = match
        self.cursor: int | None = 0
        self.copied, self.guessed = 0, False
        self.followed, self.read = 1, 0
        self.text, self.runs = np.asarray(self.tokens), np.zeros(len(self.tokens), np.int64)

    def copy(self, limit: int) -> list[int]:
        """The text from the cursor on, at most ``limit`` tokens, up to the first that is never drafted."""
        if self.cursor is None:
            return []
        draft = self.tokens[self.cursor + 1 : self.cursor + 1 + limit]
        if NEVER_DRAFTED in draft:
            del draft[draft.index(NEVER_DRAFTED) :]
        return draft

    def follow(self, output: Sequence[int], gained: int) -> None:
        """Moves the cursor to where the output stands now.

        Args:
            output: the committed prefix, start symbol included.
            gained: how many of its tokens are new.
        """
        cursor, self.followed = self.cursor, len(output)
        if cursor is not None:
            following = self.tokens[cursor + 1 : cursor + 1 + gained]
            if following == output[-gained:]:
                self.cursor = cursor + gained  # a unique run, grown longer, is still unique
                self.guessed = False
                return
            self.copied = cursor + common_prefix(following, output[-gained:])
        for token in output[self.read :]:  # only after a rejected token; many outputs have none
            self.runs = (np.append(0, self.runs[:-1]) + 1) * (self.text == token)
        self.read = len(output)
        self.cursor = self._occurrence()
        if self.match == "aligned" and self.cursor is None and cursor is not None:
            self.cursor = self._replaced(cursor)
        else:
            self.guessed = False

    def _occurrence(self) -> int | None:
        """The index of the text where the longest suffix of the output ends; None: there is none that counts."""
        longest = self.runs.max()
        ends = np.flatnonzero(self.runs == longest) if longest else self.runs[:0]
        if len(ends) == 0 or (self.match == "unique" and len(ends) > 1):
            return None
        later = ends if self.match == "longest" else ends[ends > self.copied]
        return int(later[0] if len(later) else ends[0])

    def _replaced(self, cursor: int) -> int | None:
        """The cursor if the last token of the output replaced the rejected one; None at the end of the text.

        If the cursor was such a guess already and no token of the draft was accepted, the new token was inserted before
        the rejected one: one word may be replaced by several tokens.
        """
        inserted = self.guessed and self.copied == cursor
        place = cursor if inserted else self.copied + 1
        self.guessed = place + 1 < len(self.tokens)
        return place if self.guessed else None


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest common prefix of two sequences."""
    alike = 0
    while alike < min(len(first), len(second)) and first[alike] == second[alike]:
        alike += 1
    return alike
