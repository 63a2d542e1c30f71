"""Copying texts on the device: :mod:`~fairseq_aggdec.drafters.copy.copy_text` for all rows at once.

Instead of walking an automaton it keeps for every place of a text how many tokens up to there are those that the output
ends with (``runs``). The longest run is the longest suffix of the output that occurs in the text, and where it is
reached the suffix ends.

Worked example. The output is ``<s> a b a``; a place without a number has 0. ::

    text   <s> a b c a b a     after the output's token a
    runs       1     1   3     the longest suffix, a b a, occurs once: the cursor stands at the end of it
"""

import functools
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.engine.graphs.window_graphs import grid_end, grid_rows
from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.search.acceptance import NO_DRAFT
from fairseq_aggdec.search.board import Board, Rows
from fairseq_aggdec.search.compiled.searches import MATCHES
from fairseq_aggdec.search.state import Row
from fairseq_aggdec.windows.transfer import send_into


class CopyBoard:
    """Texts (up to L tokens) of S sentences, and of one more that stands for none; where the outputs stand in them.

    Args:
        match: see :mod:`~fairseq_aggdec.drafters.copy.copy_text`.
        device: everything is there.

    Attributes:
        texts: (S + 1, L + 1) int64, the start symbol first, ``NO_DRAFT`` where no token is, as in the last column.
        runs: (S + 1, L) int64.
        places: (S + 1, 4) int64: the cursor, L where the output stands nowhere; the last token that was copied;
            whether the cursor stands where a token was replaced; the tokens of the text.
        generation, sources: see :class:`~fairseq_aggdec.engine.graphs.window_graphs.GraphMemory`.
    """

    def __init__(self, match: str, device: torch.device):
        self.match, self.device = match, device
        self.room = 0, 0
        self.generation = 0

    @property
    def sources(self) -> int:
        return self.room[1]

    def set(self, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Takes up a batch.

        Args:
            texts: of the sentences, the start symbol first.
            starts: what the outputs begin with.
        """
        self._make_room(len(texts), max(map(len, texts)))
        sentences, length = self.room
        none = sentences + 1 - len(texts)
        padded = [[*text, *[NO_DRAFT] * (length + 1 - len(text))] for text in texts]
        on_host = torch.tensor(padded + [[NO_DRAFT] * (length + 1)] * none)
        begun = torch.tensor([*starts, *[NO_DRAFT] * none]).unsqueeze(1)
        places = [[0, 0, 0, len(text)] for text in texts] + [[length, 0, 0, 0]] * none
        parts = on_host, (on_host[:, :length] == begun).long(), torch.tensor(places)
        send_into(self.memory, torch.cat([part.flatten() for part in parts]))

    def _make_room(self, sentences: int, length: int) -> None:
        wanted = max(grid_rows(sentences), self.room[0]), max(grid_end(length), self.room[1])
        if wanted == self.room:
            return
        self.room, self.generation = wanted, self.generation + 1
        rows, widths = wanted[0] + 1, (wanted[1] + 1, wanted[1], 4)
        # One after the other, so that all are sent at once.
        self.memory = torch.zeros(rows * sum(widths), dtype=torch.long, device=self.device)
        parts = self.memory.split([rows * width for width in widths])
        self.texts, self.runs, self.places = (part.view(rows, -1) for part in parts)

    def block(self, board: Board, owners: Tensor, rows: Rows, size: int) -> Tensor:
        """(R, K) the texts from where the outputs stand now, ``NO_DRAFT`` behind the last token to draft.

        Args:
            board, owners, rows: as :meth:`~fairseq_aggdec.search.drafter.DeviceDrafter.block` has them.
            size: K, as in the iteration before: no row has gained more than K + 1 tokens in it.
        """
        numbers = owners.clamp(max=self.room[0])  # the board may have room for more sentences
        texts, nowhere = self.texts.index_select(0, numbers), self.sources
        ahead = torch.arange(1, size + 2, device=owners.device)  # (K + 1,)
        cursor, copied, guessed, count = self.places.index_select(0, numbers).unbind(1)  # (R,) each
        gained = rows.position - rows.before
        # What the text says behind the cursor, and what was written instead, (R, K + 1)
        following = texts.gather(1, (cursor.unsqueeze(1) + ahead).clamp_(max=nowhere))
        behind = (rows.before.unsqueeze(1) + ahead).clamp_(max=board.room[1] - 1)
        outputs = board.tokens.index_select(0, owners)  # (R, T)
        alike = following == outputs.gather(1, behind)
        stood = torch.minimum(alike.long().cumprod(1).sum(1), gained)
        follows = stood == gained
        copied = torch.where(follows | (cursor == nowhere), copied, cursor + stood)
        candidates = self._candidates(numbers, texts, outputs, rows, ahead - 1)
        place = self._place(candidates, copied)
        if self.match == "aligned":
            inserted = (guessed != 0) & (copied == cursor)
            replaced = torch.where(inserted, cursor, copied + 1)
            lost = (place == nowhere) & (cursor != nowhere) & ~follows & (replaced + 1 < count)
            place, guessed = torch.where(lost, replaced, place), lost
        cursor = torch.where(follows, cursor + gained, place)
        changed = torch.stack([cursor, copied, guessed.long(), count], dim=1)
        self.places.index_copy_(0, numbers, changed)
        block = texts.gather(1, (cursor.unsqueeze(1) + ahead[:-1]).clamp_(max=nowhere))
        return block.masked_fill_((block == NO_DRAFT).cumsum(1) > 0, NO_DRAFT)

    def _candidates(
        self, numbers: Tensor, texts: Tensor, outputs: Tensor, rows: Rows, back: Tensor
    ) -> Tensor:
        """(R, L) bool: where the longest suffix of each output that occurs in its text ends there.

        Args:
            numbers: (R,) int64, the sentences of the rows, in ``texts`` (R, L + 1), and with ``outputs`` (R, T).
            back: 0, 1, .. K.
        """
        gained = (rows.position - rows.before).unsqueeze(1)
        length = self.sources
        at = (rows.position.unsqueeze(1) - back).clamp_(min=0)
        written = outputs.gather(1, at)  # (R, K + 1), the last first
        places = torch.arange(length, device=back.device)
        before = places.unsqueeze(1) - back
        before = before.masked_fill_(before < 0, length)  # (L, K + 1), in the text
        alike = texts[:, before] == written.unsqueeze(1)
        alike &= (back < gained).unsqueeze(1)
        new = alike.long().cumprod(2).sum(2)  # (R, L)
        # Where all that is new goes on in the text, so may what was there before.
        first = places - gained
        old = self.runs.index_select(0, numbers).gather(1, first.clamp(min=0))
        runs = new + old.masked_fill_((new < gained) | (first < 0), 0)
        self.runs.index_copy_(0, numbers, runs)
        longest = runs.amax(1, keepdim=True)
        return (runs == longest) & (longest > 0)

    def _place(self, candidates: Tensor, copied: Tensor) -> Tensor:
        """(R,) which of the places (R, L) counts, L for none; ``copied`` (R,) is the last token that was."""
        length = self.sources
        places = torch.arange(length, device=candidates.device)
        first = torch.where(candidates, places, length).amin(1)
        if self.match == "longest":
            return first
        if self.match == "unique":
            return torch.where(candidates.sum(1) == 1, first, length)
        next_one = torch.where(candidates & (places > copied.unsqueeze(1)), places, length).amin(1)
        return torch.where(next_one == length, first, next_one)


class FusedCopyBoard(CopyBoard):
    """A block is one launch."""

    def block(self, board: Board, owners: Tensor, rows: Rows, size: int) -> Tensor:
        count, (nobody, places) = len(owners), self.room
        block = owners.new_empty(count, size)
        form = count, size, board.room[1], places, nobody, MATCHES.index(self.match)
        state = self.texts, self.runs, self.places, block
        gpu.ops().copy_block(*form, board.numbers, board.tokens, owners, *state)
        return block


def copy_board(match: str, device: torch.device) -> CopyBoard:
    """One that runs in the fused kernels where they can be used."""
    kind: type[CopyBoard] = gpu.either(FusedCopyBoard, CopyBoard, device, copies_alike)
    return kind(match, device)


def _twins(device: torch.device, count: int) -> gpu.Twins:
    board = Board((count, 64), 0, 0, device, torch.float32, pad=1)
    board.set([Row(i, [2, *range(4, 20)], end=60, floor=0) for i in range(count)])
    send_into(board.owners[:count], list(range(count)))
    kinds = CopyBoard("longest", device), FusedCopyBoard("longest", device)
    for copies in kinds:
        copies.set([[2, *range(4, 40)]] * count, [2] * count)
    rows, owners = board.rows(board.owners[:count]), board.owners[:count]
    plain, fused = (functools.partial(one.block, board, owners, rows, 10) for one in kinds)
    return gpu.Twins(fused, plain)


@gpu.tries("copy_block", twins=_twins)
def copies_alike(device: torch.device) -> bool:
    """Tells whether blocks of kernels are those of PyTorch's operators while outputs grow."""
    chance, size = random.Random(3), 3
    for match in MATCHES:
        board, outputs = Board((2, 40), 0, 0, device, torch.float32, pad=1), [[2], [2]]
        board.set([Row(i, [2], end=30, floor=0) for i in range(2)])
        send_into(board.owners, [1, 0, 2])
        twins = CopyBoard(match, device), FusedCopyBoard(match, device)
        texts = [[2, *chance.choices(range(4, 7), k=12)] for _ in outputs]
        for copies in twins:
            copies.set(texts, [2, 2])
        for _ in range(6):
            rows = board.rows(board.owners)
            plain, fused = (copies.block(board, board.owners, rows, size).cpu() for copies in twins)
            if not torch.equal(plain, fused):
                return False
            for sentence, output in enumerate(outputs):
                before = len(output) - 1
                drafted = [token for token in plain[1 - sentence].tolist() if token != NO_DRAFT]
                output += [*drafted[: chance.randint(0, size)], chance.randrange(4, 7)]
                send_into(board.tokens[sentence, : len(output)], output)
                send_into(board.numbers[sentence, :2], [len(output) - 1, before])
    return True
