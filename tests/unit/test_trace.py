"""Traces and the report, from a record made by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from rich.console import Console

from fairseq_aggdec.evaluation import report, trace
from fairseq_aggdec.evaluation.recording import Iteration, Record
from fairseq_aggdec.evaluation.trace import ACCEPTED, COMMITTED, DISCARDED, OWN, RELAXED, Piece

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
    assert list(trace.legend([shown, beside])) == list(trace.STYLES)


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


def test_report_needs_no_other_file(shown: trace.Trace, tmp_path: Path) -> None:
    (tmp_path / "plot.svg").write_text("<?xml version='1.0'?>\n<svg>plot</svg>\n")
    page = tmp_path / "report.html"
    plots = {"Edits": tmp_path / "plot.svg"}
    report.write(page, "Title", "Words.", ["a", "b"], [["1", "2"]], [shown], plots)
    html = page.read_text()
    assert '<span class="discarded"> sit &lt;here&gt;</span>' in html
    assert "<svg>plot</svg>" in html and "<?xml" not in html
    assert "src=" not in html and "href=" not in html


def test_report_has_both_lines(words: Dictionary, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    shown = trace.trace_beside(RELAXED_RECORD, words, words)
    report.write(page, "Title", "Words.", ["a"], [["1"]], [shown], {})
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    drafted = (
        '<b>D</b><span class="committed"> the cats</span><span class="discarded"> &lt;/s&gt;</span>'
    )
    assert f'<li>{drafted}<br><b>V</b><span class="committed"> the cats</span>' in html


def test_choice_is_of_middling_length_and_varied() -> None:
    records = [
        Record(n, [2], [Iteration([], [2], 0, [5] * length)] * rounds)
        for n, (length, rounds) in enumerate([(1, 1), (20, 1), (10, 2), (7, 3), (30, 9), (50, 1)])
    ]
    chosen = trace.choose(records)
    assert len({record.sentence for record in chosen}) == len(chosen) > 0
    assert all(1 < len(record.output) < 270 for record in chosen)
