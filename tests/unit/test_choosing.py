"""Which sentences are worth showing."""

from __future__ import annotations

from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.report import choosing


def test_choice_is_of_middling_length_and_varied() -> None:
    records = [
        Record(n, [2], [Iteration([], [2], 0, [5] * length)] * rounds)
        for n, (length, rounds) in enumerate([(1, 1), (20, 1), (10, 2), (7, 3), (30, 9), (50, 1)])
    ]
    chosen = choosing.choose(records)
    assert len({record.sentence for record in chosen}) == len(chosen) > 0
    assert all(1 < len(record.output) < 270 for record in chosen)
