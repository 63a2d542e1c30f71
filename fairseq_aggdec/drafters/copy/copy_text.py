"""A text to copy from, and where an output stands in it (Algorithm 1 of Ge et al., section 3.1).

The output is followed through the source. As long as its longest suffix that occurs in the source occurs there once,
what follows that occurrence is the draft. The longest suffix decides: a shorter one occurs wherever the longer does,
so if any suffix is unique the longest is. That is ``--variant iad-match=unique``; the other matches find a place more
often, and differ from it in speed only.
"""

from collections.abc import Sequence

import numpy as np

NEVER_DRAFTED = -1


class CopyText:
    """One text to copy from, and how far the output has followed it.

    Args:
        tokens: the text in target ids without its end symbol, ``NEVER_DRAFTED`` where a token must not be drafted.
        start: start symbol of the output; it stands before the text, so that the first draft is the whole text.
        match: which occurrence counts when the suffix has several (``iad-match``): none (``unique``), the first
            (``longest``), or the next after the last copied token (``recent``); ``aligned`` is ``recent``, and where no
            suffix occurs the rejected token is taken as replaced.
    """

    def __init__(self, tokens: Sequence[int], start: int, match: str):
        self.tokens = [start, *tokens]
        self.match = match
        # Index of the token that the output is thought to stand at, and of the last one that it has copied.
        self.cursor: int | None = 0
        self.copied = 0
        self.guessed = (
            False  # the cursor stands where a token was replaced, as nothing says otherwise
        )
        # Output tokens, start symbol included, that it has followed, and that ``runs`` tell of.
        self.followed, self.read = 1, 0
        # How many tokens up to each place are those that the output ends with: where the largest number stands, its
        # longest suffix that occurs in the text ends.
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
        """Moves the cursor to where the output stands now, None where it stands nowhere.

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
        for token in output[self.read :]:  # only where a draft has failed: many never do
            self.runs = (np.append(0, self.runs[:-1]) + 1) * (self.text == token)
        self.read = len(output)
        self.cursor = self._occurrence()
        if self.match == "aligned" and self.cursor is None and cursor is not None:
            self.cursor = self._replaced(cursor)
        else:
            self.guessed = False

    def _occurrence(self) -> int | None:
        """Where the longest suffix of the output that occurs in the text ends there, None for nowhere."""
        longest = self.runs.max()
        ends = np.flatnonzero(self.runs == longest) if longest else self.runs[:0]
        if len(ends) == 0 or (self.match == "unique" and len(ends) > 1):
            return None
        later = ends if self.match == "longest" else ends[ends > self.copied]
        return int(later[0] if len(later) else ends[0])

    def _replaced(self, cursor: int) -> int | None:
        """Where the output stands if its last token replaced the rejected one.

        If that was thought before and nothing of the draft stood, it came before the rejected token: one word may be
        replaced by several tokens.
        """
        inserted = self.guessed and self.copied == cursor
        place = cursor if inserted else self.copied + 1
        self.guessed = place + 1 < len(self.tokens)
        return place if self.guessed else None


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    alike = 0
    while alike < min(len(first), len(second)) and first[alike] == second[alike]:
        alike += 1
    return alike
