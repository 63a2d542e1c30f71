"""Turns, ratios and tables of the benchmark; nothing here depends on how fast anything is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fairseq_aggdec.api.session import spread
from fairseq_aggdec.bench import lengths, table, timing
from fairseq_aggdec.bench.agreement import Agreement
from fairseq_aggdec.bench.timing import Measurement, System
from fairseq_aggdec.search.counters import Counters


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by one second whenever somebody looks."""
    seconds = itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(seconds)))


def system(name: str, calls: list[str], output: Sequence[int] = (5, 2)) -> System:
    def decode(sample: dict[str, Any]) -> list[list[int]]:
        calls.append(name)
        return [list(output) for _ in sample["id"]]

    return System(name, decode)


def batches(*sizes: int) -> list[dict[str, Any]]:
    ids = itertools.count()
    return [{"id": torch.tensor([next(ids) for _ in range(size)])} for size in sizes]


def test_every_system_has_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of two batches, one more before each that is not timed."""
    monkeypatch.setattr(timing, "TURN", 2)
    calls: list[str] = []
    results = timing.measure([system(n, calls) for n in "abc"], batches(1, 1, 1), warm_up=0)
    assert "".join(calls) == "aaabbbccc" + "bbccaa"
    assert [result.seconds for result in results] == [[1.0] * 3] * 3


def test_warm_up_is_not_timed() -> None:
    calls: list[str] = []
    (result,) = timing.measure([system("a", calls)], batches(2, 3), warm_up=1)
    assert len(calls) == 1 + 1 + 2  # another one at the beginning of the turn
    assert result.seconds == [1.0, 1.0]
    assert sorted(result.outputs) == [0, 1, 2, 3, 4]
    assert result.tokens == 10


def test_repeats_count_once() -> None:
    (result,) = timing.measure([system("a", [])], batches(1, 1), repeats=3)
    assert result.seconds == [1.0, 1.0]


def test_mean_accepted_leaves_the_warm_up_out() -> None:
    counters = Counters()

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        first = not counters.sentences
        counters.sentences += 1
        counters.emitted[9 if first else 4] += 1
        counters.iterations += 1
        return [[5, 6, 7, 2]]

    counters.emitted[1] = counters.iterations = 100
    (result,) = timing.measure([System("iad", decode, counters)], batches(1, 1), warm_up=0)
    assert result.mean_accepted == 4.0


def test_percentiles() -> None:
    result = Measurement("a", seconds=[float(i) for i in range(1, 101)])
    assert (result.percentile(0.5), result.percentile(0.95)) == (51.0, 96.0)
    assert Measurement("a", seconds=[3.0]).percentile(0.95) == 3.0


def test_a_sentence_that_one_lacks_differs() -> None:
    left = Measurement("a", outputs={0: [5, 2], 1: [6, 2], 2: [7, 2]})
    right = Measurement("b", outputs={0: [5, 2], 1: [7, 2]})
    assert timing.different(left, right) == 2


def test_ratios_and_equality_stand_beside_the_speed() -> None:
    outputs = {0: [5, 2], 1: [6, 2]}
    measured = [
        Measurement("beam5", [6.0, 6.0], outputs),
        Measurement("beam1", [3.0, 3.0], outputs),
        Measurement("greedy", [2.0, 2.0], outputs, 1.0),
        Measurement("iad", [1.0, 1.0], outputs | {1: [7, 2]}, 5.0),
    ]
    systems = [System("beam5", list, beam=5, stock=True), System("beam1", list, stock=True)]
    systems += [System("greedy", list), System("iad", list)]
    lines = table.lines(systems, measured, 1, 2)
    assert lines[3].speedup == {"beam5": 6.0, "beam1": 3.0, "greedy": 2.0}
    assert [line.differ for line in lines] == [None, None, 0, 1]
    shown = table.markdown(lines).splitlines()
    assert shown[0] == "**batch 1, 2 threads**"
    assert len({row.count("|") for row in shown[2:]}) == 1
    assert (
        "| ours, IAD | 5.00 | 1000.0 | 1000.0 | 1000.0 | 1.0 | 2 | 6.00 | 3.00 | 2.00 | 1 of 2 |"
        in shown
    )


def test_speed_by_source_length() -> None:
    """Of sentences in any order; lengths are without ``</s>``, and the tables are below those of the batch."""
    outputs = {sentence: [5, 2] for sentence in range(4)}
    measured = [
        Measurement("beam1", [1.0, 2.0, 3.0, 6.0], outputs),
        Measurement("greedy", [0.5, 1.0, 1.0, 1.5], outputs),
    ]
    samples = [{"net_input": {"src_lengths": torch.tensor([size])}} for size in (8, 4, 6, 10)]
    systems = [System("beam1", list, stock=True), System("greedy", list)]
    lines = table.lines(systems, measured, 1, 1, ["beam1"])
    table.add_lengths(lines, measured, samples, 2)
    assert lines[1].by_length == [
        lengths.Span(3, 5, 2, 2.0, {"beam1": 2.5}),
        lengths.Span(7, 9, 2, 2.0, {"beam1": 3.5}),
    ]
    shown = table.markdown(lines).splitlines()
    assert "By source length, in tokens without `</s>`; sentences: 2, 2" in shown
    place = shown.index("| x fairseq beam 1, by source length | 3 to 5 | 7 to 9 |")
    assert shown[place + 1 : place + 4] == [
        "|---|---|---|",
        "| fairseq beam 1 | 1.00 | 1.00 |",
        "| ours, greedy | 2.50 | 3.50 |",
    ]
    assert "| ours, greedy | 1000.0 | 1000.0 |" in shown[:place]


def test_bins_are_of_about_equal_size_and_share_no_length() -> None:
    assert lengths.bins([5, 1, 4, 2, 3, 9, 7], 3) == [[1, 3], [4, 2, 0], [6, 5]]
    assert lengths.bins([2, 1], 5) == [[1], [0]]
    assert lengths.bins([4, 4, 4, 4, 9, 4], 3) == [[0, 1, 2, 3, 5], [4]]


def test_the_same_outputs_have_one_quality() -> None:
    agreement = Agreement("BLEU")
    outputs = {0: [5, 2], 1: [6, 2], 2: [7, 2]}
    agreement.add("beam5", 8, outputs, 35.93)
    agreement.add("search5", 8, dict(reversed(outputs.items())), 35.93)
    agreement.add("beam5", 32, outputs | {2: [8, 2]}, 34.0)  # a tie that rounding decides
    agreement.add("beam5", 128, {}, None)
    with pytest.raises(
        SystemExit, match=r"batches of 32 has BLEU 17\.83 and fairseq beam 5 in bat"
    ):
        agreement.add("greedy", 32, outputs, 17.83)
    with pytest.raises(SystemExit, match="batches of 32: 2 sentences have outputs that belong to"):
        agreement.add("search5", 32, outputs | {1: [7, 2], 2: [6, 2]}, 17.83)


def test_edit_ratio() -> None:
    assert table.edit_ratio("abcd", "abcd") == 0
    assert table.edit_ratio("abcd", "axcde") == 0.5
    assert table.edit_ratio("", "") == 0


def test_a_limit_is_spread() -> None:
    assert spread(range(10), 3) == [0, 3, 6]
    assert spread(range(2), 3) == [0, 1] == spread(range(2), None)
