"""Chooses sentences that are worth showing: of middling length, readable, and better for having been decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fairseq.data import Dictionary
from rapidfuzz.distance import Levenshtein

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.report.trace import spell, trace

References = Mapping[int, Sequence[str]]


def choose(
    records: Sequence[Record], count: int = 3, worth: Callable[[Record], bool] | None = None
) -> list[Record]:
    """Some of middling length, from the fewest iterations to many, edited ones first.

    Args:
        worth: those to take if there are enough of them; what is left is filled up from all.
    """
    wanted = [record for record in records if worth is None or worth(record)]
    pool = wanted if len(wanted) >= count else records
    by_length = sorted(pool, key=lambda record: len(record.output))
    third = len(by_length) // 3
    middling = by_length[third : max(2 * third, third + count)]
    edited = [record for record in middling if len(record.iterations) > 1]
    by_rounds = sorted(
        edited if len(edited) >= count else middling, key=lambda record: len(record.iterations)
    )
    # The last tenth is left out: what needs most iterations is rarely a sentence.
    places = [round(i * 0.9 * (len(by_rounds) - 1) / max(1, count - 1)) for i in range(count)]
    return [by_rounds[place] for place in dict.fromkeys(places)]


def worth_showing(
    source: Dictionary, target: Dictionary, references: References
) -> Callable[[Record], bool]:
    """Tells whether a record is readable text throughout, and its output nearer to every reference than its input was.

    Args:
        references: sentence -> texts that people wrote; none for a sentence asks for readable text only.
    """

    def worth(record: Record) -> bool:
        if not trace(record, source, target).readable:
            return False
        written, read = (
            spell(tokens[:-1], words).split()
            for tokens, words in ((record.output, target), (record.source, source))
        )
        return all(
            nearer(written, read, text.split()) for text in references.get(record.sentence, ())
        )

    return worth


def nearer(one: Sequence[str], other: Sequence[str], reference: Sequence[str]) -> bool:
    """Tells whether one text is fewer edits of words away from a reference than another."""
    return Levenshtein.distance(one, reference) < Levenshtein.distance(other, reference)


def references_of(session: Session, records: Sequence[Record]) -> References:
    """The target side of the data set, where it has one."""
    if session.dataset.tgt is None:
        return {}
    words = session.task.target_dictionary
    return {
        record.sentence: [spell(session.dataset[record.sentence]["target"].tolist()[:-1], words)]
        for record in records
    }
