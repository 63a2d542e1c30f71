"""The board: the state of a batch on the device, the counterpart of :class:`~fairseq_aggdec.search.state.DecodeState`.

Sentences keep their places on the board from the first iteration to the last, so an iteration can be captured as a
graph. When some have ended, only the list of those that are still decoded (``owners``) changes.

Worked example. Of four sentences the second has ended; two rows are read, of which the first belongs to sentence 0 and
the second to sentence 3. ::

    owners    0 3        which sentence each of the R rows of the grid decodes; S where a row has none
    NUMBERS   of sentences 0 .. S - 1, and of S, which is no sentence and has ended
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.search.rules import ForcedPrefix
from fairseq_aggdec.search.state import Row
from fairseq_aggdec.windows.transfer import send_into

# Columns of the numbers of a sentence: position of its last committed token, the same before the last iteration,
# whether it has ended, its iterations so far, and the limits of a row (:class:`~fairseq_aggdec.search.state.Row`).
POSITION, BEFORE, ENDED, ROUNDS, END, FLOOR, STRICT_FLOOR = range(7)
COLUMNS = 7


class Shape(NamedTuple):
    """The shape of an iteration: R rows of W slots each, which see E keys."""

    rows: int
    width: int
    end: int


def _column(index: int) -> Any:
    return property(lambda rows: rows.columns[index])


class Rows:
    """The numbers of the rows of the grid, read from the board when the first of them is needed.

    Each attribute is (R,) int64, ``ended`` bool.

    Args:
        board: has them.
        owners: (R,) int64, the sentences of the rows.

    Attributes:
        prefix: the length of the longest forced prefix, a number of the host.
        base: position of the last committed token; 0 in a row that has ended, whose result nobody reads.
    """

    def __init__(self, board: Board, owners: Tensor):
        self.board, self.owners, self.prefix = board, owners, board.width

    @functools.cached_property
    def columns(self) -> Sequence[Tensor]:
        return self.board.numbers.index_select(0, self.owners).unbind(1)

    position, before, rounds = _column(POSITION), _column(BEFORE), _column(ROUNDS)
    end, floor, strict_floor = _column(END), _column(FLOOR), _column(STRICT_FLOOR)

    @functools.cached_property
    def ended(self) -> Tensor:
        return self.columns[ENDED] != 0

    @functools.cached_property
    def base(self) -> Tensor:
        return self.position.masked_fill(self.ended, 0)


class Board:
    """Room for S sentences of up to T tokens, and one row more that is no sentence.

    Args:
        room: S, and T, positions for tokens, the start symbol's and one more that takes what is not kept included.
        prefix: the longest forced prefix.
        features: C, what a drafter reads of the verifier; 0 for nothing.
        device, dtype: of the features; everything is there.
        pad: padding of the target dictionary.

    Attributes:
        numbers: (S + 1, 7) int64, see ``COLUMNS``.
        written: (5, S + 1, T) int64, what the host reads in the end: all that follows.
        tokens: (S + 1, T) int64, the start symbol first.
        emitted, drafted, accepted: (S + 1, T) int64, by iteration.
        scores: (S + 1, T) fp32, of the token in the same place; each has room for 8 bytes.
        prefix: (S + 1, P + 1) int64, forced tokens, padding where there is none.
        features: (S + 1, C), of the last accepted position.
        owners: (R,) int64 at its beginning, the sentences of the rows of the grid.
        flags: (S + 1,) int64: of the rows of the grid the position of the last token, or its complement when it ended.
    """

    def __init__(
        self,
        room: tuple[int, int],
        prefix: int,
        features: int,
        device: torch.device,
        dtype: torch.dtype,
        pad: int,
    ):
        self.room, self.kind, self.pad = room, (prefix, features, device, dtype), pad
        rows, length, self.width = room[0] + 1, room[1], prefix

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=torch.long, device=device)

        self.numbers, self.prefix = numbers(COLUMNS), numbers(prefix + 1).fill_(pad)
        self.owners, self.flags = numbers(), numbers()
        self.written = torch.zeros(5, rows, length, dtype=torch.long, device=device)
        self.tokens, self.emitted, self.drafted, self.accepted = self.written[:-1].unbind(0)
        self.scores = _fp32(self.written[-1])
        self.features = torch.zeros(rows, features, device=device, dtype=dtype)
        self.starts = [0] * rows  # the first of the tokens, which no iteration writes

    def set(self, rows: Sequence[Row]) -> None:
        """Begins a batch; most of it is one copy and no kernel.

        The features are those of another batch: nothing that is drafted from them is read before there are new ones.
        """
        none = [[0, 0, 1, 0, 0, 0, 0]] * (self.room[0] + 1 - len(rows))
        limits = [[row.position, 0, 0, 0, row.end, row.floor, row.strict_floor] for row in rows]
        send_into(self.numbers, limits + none)
        if self.width:
            pads = [[self.pad] * (self.width + 1 - len(row.prefix)) for row in rows]
            forced = [[*row.prefix, *more] for row, more in zip(rows, pads, strict=True)]
            send_into(self.prefix, forced + [[self.pad] * (self.width + 1)] * len(none))
        starts = [row.tokens[-1] for row in rows]
        starts += starts[:1] * len(none)
        if starts != self.starts:
            send_into(self.tokens[:, 0], starts)
            self.starts = starts

    def rows(self, owners: Tensor) -> Rows:
        return Rows(self, owners)

    def forced(self, owners: Tensor, outputs: Tensor) -> Tensor:
        """(R, W) the prefix token at each output index (R, W), padding where there is none."""
        return ForcedPrefix(self.width).forced(outputs, self.prefix.index_select(0, owners))

    def commit(
        self,
        rows: Rows,
        emitted: Tensor,
        kept: Tensor,
        scores: Tensor,
        checked: tuple[Tensor, Tensor] | None,
        ended: Tensor,
    ) -> None:
        """Adds the result of an iteration.

        Args:
            rows: their numbers before.
            emitted, kept, scores: (R, W), the tokens after the last committed one, whether they are committed, their
                log-probabilities.
            checked: (R,) each, the numbers of drafted and of accepted tokens, those after ``</s>`` included; None if
                nothing was drafted.
            ended: (R,) bool, whether ``</s>`` was committed.
        """
        owners, nowhere = rows.owners, self.room[1] - 1
        slots = torch.arange(emitted.size(1), device=emitted.device)
        at = (rows.base.unsqueeze(1) + 1 + slots).masked_fill_(~kept, nowhere)  # (R, W)
        self.tokens[owners.unsqueeze(1), at] = emitted
        self.scores[owners.unsqueeze(1), at] = scores
        count = kept.sum(1)
        turn = rows.rounds.masked_fill(rows.ended, nowhere)
        self.emitted[owners, turn] = count
        if checked is not None:
            drafted, stood = checked
            self.drafted[owners, turn] = drafted
            self.accepted[owners, turn] = torch.minimum(stood, count)
        ended, position = rows.ended | ended, rows.position + count
        rounds = rows.rounds + ~rows.ended
        changed = torch.stack([position, rows.position, ended.long(), rounds], dim=1)
        # Rows without a sentence all write the numbers that are there.
        self.numbers[:, : ROUNDS + 1].index_copy_(0, owners, changed)
        self.flags[: len(owners)] = torch.where(ended, ~position, position)

    def outcomes(self, lengths: Sequence[int]) -> list[list[list[Any]]]:
        """Outcomes that were decoded for the first sentences, whose numbers of tokens are given; one launch and one
        copy.

        Returns:
            the tokens, ``</s>`` included, their log-probabilities, and how many tokens were emitted, drafted and
            accepted in each iteration; each a list for every sentence.
        """
        count, longest = len(lengths), max(lengths)
        planes = self.written[:, :count, : longest + 1].contiguous().cpu()
        # The first iterations that have written these tokens; later places are of other batches.
        ends = torch.tensor(lengths).unsqueeze(1)
        rounds = (1 + (planes[1].cumsum(1) < ends).sum(1)).tolist()
        of_tokens = [slice(1, length + 1) for length in lengths]
        parts = [(planes[0], of_tokens), (_fp32(planes[4]), of_tokens)]
        parts += [(numbers, list(map(slice, rounds))) for numbers in planes[1:4]]
        return [
            [row[kept].tolist() for row, kept in zip(rows, slices, strict=True)]
            for rows, slices in parts
        ]


def _fp32(numbers: Tensor) -> Tensor:
    """(S, T) fp32, the first half of each of the numbers (S, T) int64."""
    return numbers.view(torch.float32)[:, ::2]
