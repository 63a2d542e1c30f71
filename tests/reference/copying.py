"""Copies of texts in plain Python: where an output stands in its text, and how much of it is drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fairseq_aggdec.budget.copy_length import (
    LONG,
    PROBE_LENGTH,
    CopyLength,
    worthwhile,
)
from fairseq_aggdec.budget.decaying_mean import DecayingMean
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED, common_prefix
from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Draft, Verdict

# How strongly a sentence is believed to be like the others, in tokens: a short sentence.
WEIGHT_OF_ALL = 10.0


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
        """Moves the cursor to where the output stands now, token by token.

        Args:
            output: the committed prefix, start symbol included.
            gained: how many of its tokens are new.
        """
        for end in range(len(output) - gained, len(output)):
            self._step(output[: end + 1])

    def _step(self, output: Sequence[int], gained: int = 1) -> None:
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


class RowLengths:
    """How much is drafted for each row of a batch, by what became of its drafts.

    Args:
        length: has been started on the batch.
        rows: of it.
    """

    def __init__(self, length: CopyLength, rows: int):
        self.length, self.rows = length, [DecayingMean(1.0) for _ in range(rows)]
        self.keep_rows(range(rows))

    @property
    def cost(self) -> Callable[[int], float]:
        return self.length.cost_of(max(1, len(self.rows)))

    def plan(self, row: int, room: int) -> int:
        length = self.length
        if length.fixed:
            return min(length.most, room)
        if self.idle:
            return 0
        if (length.probing or length.unknown) and not self.rows[row].weight:
            return min(PROBE_LENGTH, room)
        own = self.rows[row]
        chance = (own.sum + WEIGHT_OF_ALL * length.total.mean) / (own.weight + WEIGHT_OF_ALL)
        return worthwhile(chance, self.cost, room)

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        for row, proposed, count in zip(self.rows, drafted, accepted, strict=True):
            if proposed:
                row.add(count, count + (count < proposed))
        self.length.learn(drafted, accepted)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.rows, length = [self.rows[row] for row in rows], self.length
        several = len(self.rows) > 1 and not length.probing and not length.fixed
        self.idle = several and worthwhile(length.total.mean, self.cost, LONG) == 0


class PlainCopies(Drafter):
    """What a drafter of copies that has been started drafts."""

    def __init__(self, drafter: CopyDrafter):
        self.resting, self.lengths = drafter.resting, RowLengths(drafter.draft_length, 0)
        if not self.resting:
            self.texts = [CopyText(text[1:], text[0], drafter.match) for text in drafter.texts]
            self.lengths = RowLengths(drafter.draft_length, len(self.texts))

    def draft(self, state: DecodeState) -> Draft:
        if self.resting or self.lengths.idle:
            return Draft([()] * len(state.rows))
        return Draft([self._copy(place, row) for place, row in enumerate(state.rows)])

    def _copy(self, place: int, row: Row) -> list[int]:
        text = self.texts[place]
        limit = self.lengths.plan(place, min(row.end - row.position, len(text.tokens)))
        gained = len(row.tokens) - text.followed
        if limit and gained:  # not before: a row that drafts nothing need not know where it stands
            text.follow(row.tokens, gained)
        return text.copy(limit)

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        if not self.resting:
            self.lengths.observe(verdict.drafted, verdict.accepted)

    def keep_rows(self, rows: Sequence[int]) -> None:
        if not self.resting:
            self.texts = [self.texts[row] for row in rows]
            self.lengths.keep_rows(rows)
