"""Traces and the report, from a record made by hand."""

from __future__ import annotations

import io

import pytest
from fairseq.data import Dictionary
from rich.console import Console

from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.report import trace
from fairseq_aggdec.report.trace import ACCEPTED, COMMITTED, DISCARDED, OWN, RELAXED, Piece

WORDS = ("▁the", "▁cat", "s", "▁sit", "▁<here>")  # ids 4 to 8
RECORD = Record(
    0,
    [4, 5, 7, 8, 2],
    [Iteration([4, 5, 7, 8], [4, 5, 6, 2], 2, [4, 5, 6]), Iteration([], [2], 0, [2])],
)


@pytest.fixture
def words() -> Dictionary:
    dictionary = Dictionary()
    for word in WORDS:
        dictionary.add_symbol(word)
    return dictionary


@pytest.fixture
def shown(words: Dictionary) -> trace.Trace:
    return trace.trace(RECORD, words, words)


def test_pieces(shown: trace.Trace) -> None:
    assert shown.iterations == [
        [Piece(" the cat", ACCEPTED), Piece("s", OWN), Piece(" sit <here>", DISCARDED)],
        [Piece(" </s>", OWN)],
    ]
    assert (shown.source, shown.output, shown.tokens) == ("the cat sit <here>", "the cats", 4)


# GAD++: "cat" stands though the verifier would have written "s"; then the drafter ends the sentence too early.
RELAXED_RECORD = Record(
    0,
    [4, 2],
    [
        Iteration([4, 5, 7], [4, 6, 6, 8], 2, [4, 5, 6]),
        Iteration([2], [7, 2], 0, [7]),
        Iteration([8, 2], [8, 2, 4], 2, [8, 2]),
    ],
)


def test_tokens_that_only_relaxed_acceptance_lets_stand(words: Dictionary) -> None:
    shown = trace.trace(RELAXED_RECORD, words, words)
    assert shown.iterations[0] == [
        Piece(" the", ACCEPTED),
        Piece(" cat", RELAXED),
        Piece("s", OWN),
        Piece(" sit", DISCARDED),
    ]


def test_drafter_and_verifier_beside_each_other(words: Dictionary) -> None:
    """As Table 17 has it; the verifier's output after ``</s>`` is left out."""
    shown = trace.trace_beside(RELAXED_RECORD, words, words)
    assert shown.iterations == [
        [Piece(" the", ACCEPTED), Piece(" cat", RELAXED), Piece(" sit", DISCARDED)],
        [Piece(" the cats", COMMITTED), Piece(" </s>", DISCARDED)],
        [Piece(" the cats sit", COMMITTED), Piece(" <here> </s>", ACCEPTED)],
    ]
    assert shown.verified == [
        [
            Piece(" the", ACCEPTED),
            Piece("s", DISCARDED),
            Piece("s", OWN),
            Piece(" <here>", DISCARDED),
        ],
        [Piece(" the cats", COMMITTED), Piece(" sit", OWN), Piece(" </s>", DISCARDED)],
        [Piece(" the cats sit", COMMITTED), Piece(" <here> </s>", ACCEPTED)],
    ]
    lines = [line.plain for line in trace.lines(shown)]
    assert lines[3:5] == ["     2 D the cats </s>", "       V the cats sit </s>"]


def test_the_legend_has_what_is_shown(shown: trace.Trace, words: Dictionary) -> None:
    assert list(trace.legend([shown])) == [ACCEPTED, OWN, DISCARDED]
    beside = trace.trace_beside(RELAXED_RECORD, words, words)
    kinds = [COMMITTED, ACCEPTED, RELAXED, OWN, DISCARDED]
    assert list(trace.legend([shown, beside])) == kinds


def test_words_and_bytes(words: Dictionary) -> None:
    plain = Dictionary()
    plain.add_symbol("cat")
    assert trace.spell([4, 2], plain) == " cat </s>"
    first = words.add_symbol("<0xC3>")
    second = words.add_symbol("<0xA9>")
    assert trace.spell([4, first, second], words) == " theé"


def test_terminal(shown: trace.Trace) -> None:
    stream = io.StringIO()
    trace.show(Console(file=stream, force_terminal=True, width=120), [shown])
    text = stream.getvalue()
    assert "\x1b[32m the cat\x1b" in text  # green
    assert "decoder calls: 2; one token at a time: 4" in text
    assert "~" not in text


def test_marks_take_the_place_of_colours(shown: trace.Trace, words: Dictionary) -> None:
    """What stood and what was thrown away is told apart in a file, too."""
    stream = io.StringIO()
    relaxed = trace.trace(RELAXED_RECORD, words, words)
    trace.show(Console(file=stream, width=120), [shown, relaxed])
    lines = stream.getvalue().splitlines()
    assert "     1  the cat[s] ~sit <here>~" in lines
    assert "     1  the (cat)[s] ~sit~" in lines
    assert "  ~drafted or predicted, and thrown away~" in lines
    assert "  drafted and accepted: decoded in parallel" in lines


def test_every_kind_looks_unlike_the_others_without_colours() -> None:
    """Accepted text is plain; committed text is only ever beside it in lines that say so."""
    accepted = {ACCEPTED, COMMITTED}
    marks = {name: kind.marks for name, kind in trace.KINDS.items() if kind.marks != ("", "")}
    assert marks.keys() == trace.KINDS.keys() - accepted
    assert marks[DISCARDED] != marks[OWN] != marks[RELAXED]


def test_half_of_a_character_is_shown_as_what_it_is(words: Dictionary) -> None:
    first, second = words.add_symbol("<0xC3>"), words.add_symbol("<0xA9>")
    halves = Record(
        0,
        [4, first, second, 2],
        [Iteration([4], [first], 0, [first]), Iteration([], [], 0, [second, 2])],
    )
    shown = trace.trace(halves, words, words)
    assert shown.iterations[0][0].text == "<0xC3>" and shown.output == "é"
    assert not shown.readable
    whole = Record(0, [4, 2], [Iteration([], [], 0, [first, second, 2])])
    assert trace.trace(whole, words, words).readable
    unknown = Record(0, [words.unk(), 2], [Iteration([], [4], 0, [4, 2])])
    assert not trace.trace(unknown, words, words).readable
