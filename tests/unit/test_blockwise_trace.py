"""Traces token by token, with the size of each block, from a record made by hand."""

from __future__ import annotations

from fairseq.data import Dictionary

from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.report import trace
from fairseq_aggdec.report.trace import ACCEPTED, DISCARDED, OWN, Piece

RECORD = Record(
    0,
    [4, 2],
    [Iteration([], [4], 0, [4]), Iteration([5, 6, 4], [5, 6, 2, 2], 2, [5, 6, 2])],
)


def words() -> Dictionary:
    dictionary = Dictionary()
    for word in ("▁the", "▁cat", "s"):
        dictionary.add_symbol(word)
    return dictionary


def test_tokens_stay_apart_and_are_counted() -> None:
    shown = trace.trace(RECORD, words(), words(), apart=True)
    assert shown.gains == [1, 3]
    assert shown.iterations == [
        [Piece(" ▁the", OWN)],
        [Piece(" ▁cat s", ACCEPTED), Piece(" </s>", OWN), Piece(" ▁the", DISCARDED)],
    ]
    lines = [line.plain for line in trace.lines(shown)]
    assert lines[1:3] == ["     1   1 token   ▁the", "     2   3 tokens  ▁cat s </s> ▁the"]
    assert shown.output == "the cats"


def test_running_text_has_no_counts() -> None:
    lines = [line.plain for line in trace.lines(trace.trace(RECORD, words(), words()))]
    assert lines[1:3] == ["     1  the", "     2  cats </s> the"]
