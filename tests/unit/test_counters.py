"""Counters: a trace worked by hand, the line for the log, and clocks that survive an exception."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_aggdec.bench.table import time_modules_apart
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.search.counters import PARTS, Counters


def worked_trace() -> Counters:
    """Two sentences: the first needs two rounds for 5 tokens, the second three rounds for 4 tokens."""
    counters = Counters(sentences=2)
    counters.add_all([4, 1], [4, 3], [3, 0])
    counters.add_all([1, 1], [2, 0], [1, 0])  # </s> drafted and accepted ends the first sentence
    counters.add_all([2], [1], [1])
    return counters


def test_worked_trace() -> None:
    counters = worked_trace()
    assert (counters.sentences, counters.iterations) == (2, 5)
    assert (counters.drafted, counters.accepted) == (10, 5)
    assert counters.tokens == 9
    assert dict(counters.emitted) == {4: 1, 1: 3, 2: 1}
    assert counters.mean_accepted_tokens == pytest.approx(9 / 5)
    assert counters.acceptance_rate == pytest.approx(0.5)


def test_how_far_drafts_stand_by_slot() -> None:
    counters = worked_trace()
    assert dict(counters.accepted_lengths) == {3: 1, 1: 2, 0: 2}
    assert counters.by_slot(10) == pytest.approx([3 / 5, 1 / 5, 1 / 5])
    assert counters.by_slot(1) == pytest.approx([3 / 5])
    assert Counters().by_slot(10) == []


def test_summary_says_it_in_one_line() -> None:
    summary = worked_trace().summary()
    assert summary.startswith("2 sentences, 9 tokens, 5 iterations, mean accepted tokens 1.80, ")
    assert "acceptance rate 50.0 %, " in summary
    assert "tokens per iteration 1: 60 %, 2: 20 %, 3-4: 20 %" in summary
    assert "\n" not in summary
    assert all(f"{part} 0.00" in summary for part in PARTS)


def test_summary_says_where_drafts_did_not_pay() -> None:
    counters = worked_trace()
    assert "--decoding greedy" not in counters.summary()
    counters.undrafted = 1
    assert (
        "1 of the sentences were decoded without drafts, as by --decoding greedy"
        in counters.summary()
    )


def test_summary_says_what_a_gpu_did_in_vain() -> None:
    counters = worked_trace()
    assert "in vain" not in counters.summary()
    counters.in_vain = 3
    assert counters.summary().endswith(
        "; 3 iterations more were in vain on the GPU, behind the ends of batches"
    )


def test_nothing_decoded_divides_by_nothing() -> None:
    counters = Counters()
    assert counters.mean_accepted_tokens == counters.acceptance_rate == 0.0
    assert counters.summary().startswith("0 sentences, 0 tokens")


def test_last_bin_is_open() -> None:
    counters = Counters()
    counters.add_all([41], [40], [40])
    assert counters.histogram() == "33+: 100 %"


def test_shares_of_the_histogram_are_of_all_rounds() -> None:
    """Also of those that gained nothing, as at the end of interleaved decoding, and where more rounds are counted."""
    counters = Counters(iterations=12, emitted=Counter({0: 2, 1: 4, 4: 4}))
    assert counters.histogram() == "0: 20 %, 1: 40 %, 3-4: 40 %"


def test_clock_counts_a_block_that_raises() -> None:
    counters = Counters()
    with pytest.raises(ValueError, match="stop"), counters.clock("draft"):
        raise ValueError("stop")
    assert counters.seconds["draft"] > 0
    assert counters.seconds["verify"] == 0


def test_counters_share_nothing() -> None:
    first, second = Counters(), Counters()
    first.add_all([1], [0], [0])
    assert second.tokens == 0
    assert not second.emitted


def test_modules_are_timed_apart_with_what_they_gave_a_device() -> None:
    """Work that is only given out returns at once; its part has its time where the end of it is waited for."""
    now, pending = 0.0, 0.0
    counters, drafter = Counters(read=lambda: now), SimpleNamespace(encoder_seconds=7.0, wait=None)
    counters.seconds["encoder"] = 5.0  # counted before: without waiting

    def wait() -> None:
        nonlocal now, pending
        now, pending = now + pending, 0.0

    waits: list[tuple[bool, bool]] = []

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        nonlocal pending
        with counters.clock("encoder"):
            pending += sample["work"]
        waits.append((counters.wait is wait, drafter.wait is wait))
        return []

    ours, stock = System("ours", decode, counters, drafter), System("stock", decode)
    time_modules_apart([ours, stock], [{"work": 2.0}] * 3, wait)
    assert counters.seconds["encoder"] == 6.0 and drafter.encoder_seconds == 0.0
    assert waits == [(True, True)] * 3  # stock has no parts
    assert counters.wait is None and drafter.wait is None


def test_without_drafts_no_rate_is_told() -> None:
    assert "nothing drafted, " in Counters().summary()
    assert "acceptance rate" not in Counters().summary()
