"""Texts copied on the device are copied as on the host."""

from __future__ import annotations

import random

import pytest
import torch

from fairseq_aggdec.drafters.copy.copy_on_device import CopyBoard
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED
from fairseq_aggdec.search.acceptance import NO_DRAFT
from fairseq_aggdec.search.board import BEFORE, POSITION, Board
from fairseq_aggdec.search.state import Row
from tests.reference.copying import CopyText

CPU = torch.device("cpu")
START, SIZE = 2, 3


def on_board(outputs: list[list[int]]) -> Board:
    room = len(outputs), 40
    board = Board(room, 0, 0, CPU, torch.float32, pad=1)
    board.set([Row(i, [output[0]], end=30, floor=0) for i, output in enumerate(outputs)])
    return board


def drafts(copies: CopyBoard, board: Board, owners: list[int]) -> list[list[int]]:
    picked = torch.tensor(owners)
    block = copies.block(board, picked, board.rows(picked), SIZE)
    return [[token for token in row if token != NO_DRAFT] for row in block.tolist()]


def write(board: Board, sentence: int, output: list[int], gained: list[int]) -> None:
    """Adds tokens to an output and to the board, as an iteration does."""
    board.numbers[sentence, BEFORE] = len(output) - 1
    output += gained
    board.numbers[sentence, POSITION] = len(output) - 1
    board.tokens[sentence, : len(output)] = torch.tensor(output)


@pytest.mark.parametrize("match", ["unique", "longest", "recent", "aligned"])
@pytest.mark.parametrize("seed", range(20))
def test_drafts_are_those_of_the_host(seed: int, match: str) -> None:
    source = random.Random(seed)
    words = [NEVER_DRAFTED, *range(4, 4 + source.choice((2, 3, 9)))]
    sentences = source.randint(1, 4)
    outputs = [[source.choice((START, START, words[-1]))] for _ in range(sentences)]
    texts = [[source.choice(words) for _ in range(source.randint(0, 12))] for _ in outputs]
    host = [CopyText(text, START, match) for text in texts]
    board, copies = on_board(outputs), CopyBoard(match, CPU)
    copies.set([text.tokens for text in host], [output[0] for output in outputs])
    owners = list(range(sentences))
    for _ in range(8):
        found = drafts(copies, board, owners)
        for sentence, draft in zip(owners, found, strict=True):
            text, output = host[sentence], outputs[sentence]
            if gained := len(output) - text.followed:
                text.follow(output, gained)
            assert draft == text.copy(SIZE), (texts[sentence], output)
            stood = draft[: source.randint(0, len(draft))]
            write(board, sentence, output, [*stood, source.choice(words[1:])])
        source.shuffle(owners)  # rows move, sentences stay


def test_a_batch_leaves_nothing_to_the_next() -> None:
    copies = CopyBoard("unique", CPU)
    for text in ([START, 5, 6, 7, 8], [START, 9, 5, 9]):
        outputs = [[START]]
        board = on_board(outputs)
        copies.set([text], [START])
        assert drafts(copies, board, [0]) == [text[1:4]]
        write(board, 0, outputs[0], [5])
        after = text[text.index(5) + 1 :]
        assert drafts(copies, board, [0]) == [after[:SIZE]]


def test_the_board_may_have_room_for_more_sentences() -> None:
    copies, board = CopyBoard("unique", CPU), on_board([[START]] * 8)
    copies.set([[START, 5, 6]], [START])
    nobody = board.room[0]
    assert drafts(copies, board, [0, nobody, nobody]) == [[5, 6], [], []]


def test_what_was_captured_over_smaller_memory_is_void() -> None:
    copies = CopyBoard("unique", CPU)
    copies.set([[START, 5]], [START])
    before = copies.generation
    copies.set([[START, 6]], [START])
    assert copies.generation == before
    copies.set([[START, *range(4, 200)]], [START])
    assert copies.generation > before and copies.sources >= 197
    wide = copies.sources
    copies.set([[START, 5]], [START])
    assert copies.sources == wide  # one size serves both
