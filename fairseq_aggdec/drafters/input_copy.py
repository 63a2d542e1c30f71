"""Input-guided drafting: copy the source (Algorithm 1 of Ge et al., section 3.1).

The output is followed through the source. As long as its longest suffix that occurs in the source occurs there once,
what follows that occurrence is the draft. The longest suffix decides: a shorter one occurs wherever the longer does,
so if any suffix is unique the longest is. That is ``--iad-match unique``; the other matches find a place more
often, and differ from it in speed only.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_aggdec.decoding.board import Board, Rows, Shape
from fairseq_aggdec.decoding.draft import Draft, Verification
from fairseq_aggdec.decoding.state import DecodeState
from fairseq_aggdec.decoding.transfer import on_host
from fairseq_aggdec.decoding.verifier import Verifier
from fairseq_aggdec.decoding.window_graphs import ROWS, WIDTHS, Memory
from fairseq_aggdec.drafters.copy_on_device import CopyBoard
from fairseq_aggdec.drafters.draft_length import DraftLength
from fairseq_aggdec.drafters.suffix_automaton import SuffixAutomaton

NEVER_DRAFTED = -1


class CopyText:
    """One text to copy from, and how far the output has followed it.

    Args:
        tokens: the text in target ids without its end symbol, ``NEVER_DRAFTED`` where a token must not be drafted.
        start: start symbol of the output; it stands before the text, so that the first draft is the whole text.
        match: which occurrence counts when the suffix has several (``--iad-match``): none (``unique``), the first
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
        # Output tokens, start symbol included, that it has followed, and that the automaton has been walked with.
        self.followed = self.read = 1
        self.automaton: SuffixAutomaton | None = None  # made when a draft fails: many never do
        self.state = self.length = 0

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
        if self.automaton is None:
            self.automaton = SuffixAutomaton(self.tokens)
            self.state, self.length = self.automaton.step(0, 0, output[0])
        for token in output[self.read :]:
            self.state, self.length = self.automaton.step(self.state, self.length, token)
        self.read = len(output)
        self.cursor = self._occurrence()
        if self.match == "aligned" and self.cursor is None and cursor is not None:
            self.cursor = self._replaced(cursor)
        else:
            self.guessed = False

    def _occurrence(self) -> int | None:
        assert self.automaton is not None
        if self.length == 0:
            return None
        first = self.automaton.end[self.state]
        if self.automaton.count[self.state] == 1 or self.match == "longest":
            return first
        if self.match == "unique":
            return None
        return self._next_occurrence(first)

    def _replaced(self, cursor: int) -> int | None:
        """Where the output stands if its last token replaced the rejected one.

        If that was thought before and nothing of the draft stood, it came before the rejected token: one word may be
        replaced by several tokens.
        """
        inserted = self.guessed and self.copied == cursor
        place = cursor if inserted else self.copied + 1
        self.guessed = place + 1 < len(self.tokens)
        return place if self.guessed else None

    def _next_occurrence(self, first: int) -> int:
        """The first occurrence of the matched suffix after the last copied token (``recent``)."""
        suffix = self.tokens[first - self.length + 1 : first + 1]
        for end in range(max(self.copied + 1, first), len(self.tokens)):
            if self.tokens[end - self.length + 1 : end + 1] == suffix:
                return end
        return first


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    alike = 0
    while alike < min(len(first), len(second)) and first[alike] == second[alike]:
        alike += 1
    return alike


class CopyDrafter:
    """Drafts from one text per sentence. What text that is, is said by the class that inherits.

    Args:
        eos: end symbol of the target dictionary, with which outputs start too.
        match: see :class:`CopyText`.

    Attributes:
        new_length: makes what says how long drafts are, with nothing learned.

    Where hardly anything is copied it rests: most batches cost what they cost without a drafter.
    """

    reads_features, ragged = False, True

    def __init__(self, eos: int, match: str):
        self.eos, self.match = eos, match
        self.on_device: CopyBoard | None = None
        self.limit_drafts(DraftLength)

    def limit_drafts(self, new_length: Callable[[], DraftLength]) -> None:
        self.new_length = new_length
        self.forget()

    def forget(self) -> None:
        """Forgets what was learned from the batches before."""
        self.draft_length = self.new_length()

    @property
    def resting(self) -> bool:
        """Whether nothing is drafted in the current batch, see :class:`DraftLength`."""
        return self.draft_length.resting

    def copied(self, sample: Mapping) -> Sequence[Sequence[int]]:
        """The text of each sentence of a batch as :class:`CopyText` takes it."""
        raise NotImplementedError

    def texts_of(self, sample: Mapping, verifier: Verifier) -> Sequence[Sequence[int]]:
        """The same for beam search: target tokens, up to the first that must not be drafted."""
        return [
            tokens[: tokens.index(NEVER_DRAFTED)] if NEVER_DRAFTED in tokens else tokens
            for tokens in map(list, self.copied(sample))
        ]

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        # Not the device that the models had when this was made: training moves them after that.
        by = "kernels" if verifier.compiled else state.device.type
        self.draft_length.start(len(state.rows), by)
        if not self.resting:
            self.texts = [CopyText(tokens, self.eos, self.match) for tokens in self.copied(sample)]

    def draft(self, state: DecodeState) -> Draft:
        if self.resting or self.draft_length.idle:
            return Draft([()] * len(state.rows))
        drafts = []
        for index, (row, text) in enumerate(zip(state.rows, self.texts, strict=True)):
            room = min(row.end - row.position, len(text.tokens))
            drafts.append(self._copy(text, row.tokens, self.draft_length.cap(index, room)))
        return Draft(drafts)

    def _copy(self, text: CopyText, output: Sequence[int], limit: int) -> Sequence[int]:
        if limit == 0:
            return ()
        gained = len(output) - text.followed
        if gained:  # not before: a row that drafts nothing need not know where it stands
            text.follow(output, gained)
        return text.copy(limit)

    def observe(self, verification: Verification, state: DecodeState) -> None:
        if not self.resting:
            self.draft_length.observe(verification.drafted, verification.accepted)

    def follows(self, state: DecodeState) -> int | None:
        if self.resting:
            return 0
        most, longest = self.draft_length.most, max(len(text.tokens) for text in self.texts) - 1
        limit = self.draft_length.cap(0, longest)
        if limit == 0:
            return 0
        if len(self.texts) > ROWS[-1] or (self.draft_length.fixed and limit >= WIDTHS[-1]):
            return None
        # Few sizes; slots that are too many are free on a device for which so long a draft is worth it.
        limit = WIDTHS[bisect_left(WIDTHS, min(limit + 1, WIDTHS[-1]))] - 1
        device = state.device
        if self.on_device is None or self.on_device.device != device:
            self.on_device = CopyBoard(self.match, device)
        starts = [row.tokens[0] for row in state.rows]
        self.on_device.set([text.tokens for text in self.texts], starts)
        return min(limit, most)

    def reserve(self, shape: Shape) -> Sequence[Memory]:
        assert self.on_device is not None
        return [self.on_device]

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        assert self.on_device is not None
        return self.on_device.block(board, owners, rows, shape.width - 1)

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        self.draft_length.learn(drafted, accepted)

    def iteration_ended(self, rows: int, slots: int, seconds: float) -> None:
        if measured := self.draft_length.measured:
            measured.add(rows, slots, seconds)

    def keep_rows(self, rows: Sequence[int]) -> None:
        if not self.resting:
            self.texts = [self.texts[row] for row in rows]
            self.draft_length.keep_rows(rows)


class InputCopyDrafter(CopyDrafter):
    """Drafts from the source sentence, whatever the padding side and the dictionaries.

    Args:
        source, target: dictionaries; tokens are mapped by symbol, those that the target lacks are never drafted.
        match: see :class:`CopyText`.
    """

    def __init__(self, source: Dictionary, target: Dictionary, match: str):
        super().__init__(target.eos(), match)
        self.to_target = symbol_map(source, target)
        self.source_pad, self.source_eos = source.pad(), source.eos()

    def copied(self, sample: Mapping) -> list[list[int]]:
        source = on_host(sample["net_input"]["src_tokens"])
        mapped = self.to_target[source].tolist()
        return [
            self._strip(ids, tokens) for ids, tokens in zip(source.tolist(), mapped, strict=True)
        ]

    def _strip(self, ids: list[int], tokens: list[int]) -> list[int]:
        """Cuts padding off both sides and the end symbol off the right; ``tokens`` are ``ids`` in target ids."""
        first, last = 0, len(ids)
        while last > first and ids[last - 1] == self.source_pad:
            last -= 1
        while first < last and ids[first] == self.source_pad:
            first += 1
        return (
            tokens[first : last - 1]
            if last > first and ids[last - 1] == self.source_eos
            else tokens[first:last]
        )


def symbol_map(source: Dictionary, target: Dictionary) -> Tensor:
    """(V_source,) target id of every source id by symbol, ``NEVER_DRAFTED`` for special symbols and missing ones.

    ``unk`` maps to ``unk``: the source's unknown words are often unknown in the output too.
    """
    mapped = torch.full((len(source),), NEVER_DRAFTED)
    for index in range(len(source)):
        symbol = source[index]
        if symbol in target.indices:
            mapped[index] = target.indices[symbol]
    for special in (source.bos(), source.pad(), source.eos()):
        mapped[special] = NEVER_DRAFTED
    return mapped
