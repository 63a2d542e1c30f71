"""Chooses sentences that are worth showing: of middling length, from the fewest iterations to many."""

from collections.abc import Sequence

from fairseq_aggdec.bench.recording import Record


def choose(records: Sequence[Record], count: int = 3) -> list[Record]:
    """Some of middling length, from the fewest iterations to many, edited ones first."""
    by_length = sorted(records, key=lambda record: len(record.output))
    third = len(by_length) // 3
    middling = by_length[third : max(2 * third, third + count)]
    edited = [record for record in middling if len(record.iterations) > 1]
    by_rounds = sorted(
        edited if len(edited) >= count else middling, key=lambda record: len(record.iterations)
    )
    # The last tenth is left out: what needs most iterations is rarely a sentence.
    places = [round(i * 0.9 * (len(by_rounds) - 1) / max(1, count - 1)) for i in range(count)]
    return [by_rounds[place] for place in dict.fromkeys(places)]
