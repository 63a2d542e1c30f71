"""Which sentences are worth showing."""

from __future__ import annotations

import pytest
from fairseq.data import Dictionary

from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.report import choosing
from tests.unit.test_trace import WORDS


@pytest.fixture
def words() -> Dictionary:
    dictionary = Dictionary()
    for word in WORDS:
        dictionary.add_symbol(word)
    return dictionary


def test_choice_is_of_middling_length_and_varied() -> None:
    records = [
        Record(n, [2], [Iteration([], [2], 0, [5] * length)] * rounds)
        for n, (length, rounds) in enumerate([(1, 1), (20, 1), (10, 2), (7, 3), (30, 9), (50, 1)])
    ]
    chosen = choosing.choose(records)
    assert len({record.sentence for record in chosen}) == len(chosen) > 0
    assert all(1 < len(record.output) < 270 for record in chosen)


def test_sentences_that_were_helped_are_chosen(words: Dictionary) -> None:
    """Input "the sit" and outputs "the cat" and "the"; references as people wrote them."""
    helped, harmed = (
        Record(number, [4, 7, 2], [Iteration([], [], 0, [*output, 2])])
        for number, output in enumerate(([4, 5], [4]))
    )
    worth = choosing.worth_showing(words, words, {0: ["the cat"], 1: ["the sit down"]})
    assert worth(helped) and not worth(harmed)
    both = choosing.worth_showing(words, words, {0: ["the cat", "the sit"]})
    assert not both(helped)  # it must be nearer to everybody's
    assert choosing.worth_showing(words, words, {})(harmed)
    unreadable = Record(0, [4, 2], [Iteration([], [], 0, [words.unk(), 2])])
    assert not choosing.worth_showing(words, words, {})(unreadable)
    assert choosing.choose([harmed, helped, harmed], 1, worth) == [helped]
    assert len(choosing.choose([harmed, helped, harmed], 2, worth)) == 2
