"""Draft length: best_length against trying every length, and what the estimate learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.budget.copy_length import (
    MARGIN,
    MEMORY,
    PROBE_LENGTH,
    RESTING_BATCHES,
    CopyLength,
    FixedCopyLength,
    best_length,
    worthwhile,
)
from fairseq_aggdec.budget.price import usual_price
from fairseq_aggdec.kernels.library import kernels
from tests.support import generation_options, make_batch, make_model, make_task


def started(known: CopyLength, rows: int, by: str) -> None:
    known.start(rows, usual_price(by), by in ("kernels", "cpu"))


def line(fixed_cost: float) -> Callable[[int], float]:
    """Every token costs 1."""
    return lambda length: fixed_cost + length


def tokens_per_cost(stands: float, fixed_cost: float, length: int) -> float:
    """A draft of ``length`` emits 1 + p + p^2 + ... + p^length tokens."""
    return sum(stands**k for k in range(length + 1)) / (fixed_cost + length)


@given(st.floats(0, 1), st.floats(1, 300), st.integers(0, 80))
def test_best_length_is_the_argmax(stands: float, fixed_cost: float, room: int) -> None:
    rates = [tokens_per_cost(stands, fixed_cost, length) for length in range(room + 1)]
    length = best_length(stands, line(fixed_cost), room)
    assert 0 <= length <= room
    assert rates[length] >= max(rates) * (1 - 1e-9)


def test_extremes() -> None:
    assert best_length(1.0, line(17.0), 40) == 40
    assert best_length(0.0, line(17.0), 40) == 0
    assert best_length(0.9, line(17.0), 0) == 0


def capped(drafted: Sequence[int], accepted: Sequence[int], rounds: int) -> CopyLength:
    """What is known after the same round has been seen several times."""
    known = CopyLength()
    started(known, len(drafted), "cpu")
    for _ in range(rounds):
        known.learn(drafted, accepted)
    return known


def test_a_new_batch_starts_from_what_all_sentences_showed() -> None:
    seen = capped([10], [0], 50)
    started(seen, 1, "cpu")
    fresh = CopyLength()
    started(fresh, 1, "cpu")
    assert seen.limit(60) < fresh.limit(60)


def test_rounds_without_a_draft_teach_nothing() -> None:
    assert capped([0], [0], 20).limit(60) == capped([0], [0], 0).limit(60)


def test_room_is_never_exceeded() -> None:
    known = capped([10], [10], 30)
    assert [known.limit(room) for room in range(5)] == [0, 1, 2, 3, 4]


def test_an_unknown_device_is_taken_as_one_that_likes_long_drafts() -> None:
    cpu, other = CopyLength(), CopyLength()
    started(cpu, 1, "cpu"), started(other, 1, "mps")
    assert other.limit(200) > cpu.limit(200)


@pytest.mark.parametrize(("limit", "longest"), [(3, 3), (None, 60)])
def test_a_fixed_length_stays(limit: int | None, longest: int) -> None:
    fixed = FixedCopyLength(limit)
    for _ in range(200):
        started(fixed, 2, "cpu")
        fixed.learn([60, 60], [0, 0])
    assert not fixed.resting
    assert [fixed.limit(room) for room in (0, 2, 60)] == [0, 2, longest]


@pytest.mark.parametrize("packing", [True, False])
def test_kernels_ask_for_shorter_drafts(packing: bool) -> None:
    """A step of theirs costs less beside its tokens."""
    task = make_task("iad", low_memory=not packing)
    model = make_model(task, 1)
    generator = task.build_generator([model], generation_options())
    task.inference_step(generator, [model], make_batch([[5, 6, 7]]))
    by = "kernels" if packing and kernels() else "cpu"
    assert generator.drafter.draft_length.price == usual_price(by)
    compiled, other = CopyLength(), CopyLength()
    started(compiled, 1, "kernels"), started(other, 1, "cpu")
    assert compiled.limit(200) < other.limit(200)


def hopeless(batches: int = 0) -> CopyLength:
    """Nothing ever stood, and so many batches have been decoded since."""
    known = capped([5], [0], 200)
    for _ in range(batches):
        started(known, 1, "cpu")
    return known


def test_rests_where_no_draft_stands_and_tries_again_now_and_then() -> None:
    known = hopeless()
    resting = []
    for _ in range(2 * (RESTING_BATCHES + 1)):
        started(known, 2, "cpu")
        resting.append(known.resting)
        assert known.limit(60) == (0 if known.resting else PROBE_LENGTH)
    assert resting == 2 * [*[True] * RESTING_BATCHES, False]


def test_drafts_come_back_when_they_stand_again() -> None:
    known = hopeless()
    for _ in range(40 * RESTING_BATCHES):
        started(known, 1, "cpu")
        if not known.resting:
            for _ in range(5):
                length = known.limit(20)
                known.learn([length], [length])
    started(known, 1, "cpu")
    assert not known.resting
    assert known.limit(60) > PROBE_LENGTH


def test_what_was_long_ago_is_forgotten() -> None:
    long, short = capped([50], [50], 3000), capped([50], [50], 100)
    for known in (long, short):
        started(known, 1, "cpu")
        known.learn([1], [0])
        assert known.total.weight == pytest.approx(MEMORY + 1)


def test_what_pays_does_not_rest() -> None:
    known = capped([10, 10], [10, 3], 100)
    for _ in range(5):
        started(known, 1, "cpu")
        assert not known.resting
        assert known.limit(60) > 0


def test_a_batch_in_which_tokens_cost_what_they_bring_is_not_drafted_for() -> None:
    """Few sentences are; a length that was asked for is drafted in any case."""
    lengths, asked = CopyLength(), FixedCopyLength(3)
    for known in (lengths, asked):
        started(known, 64, "kernels")
        known.learn([10] * 64, [9] * 64)
    assert (lengths.limit(30), asked.limit(30)) == (0, 3)
    started(lengths, 3, "kernels")
    assert lengths.limit(30) > 2


@given(st.floats(0, 1), st.floats(1, 300), st.integers(0, 80))
def test_a_draft_promises_a_tenth_more_or_is_none(
    stands: float, fixed_cost: float, room: int
) -> None:
    best = best_length(stands, line(fixed_cost), room)
    length = worthwhile(stands, line(fixed_cost), room)
    gain = tokens_per_cost(stands, fixed_cost, best) * fixed_cost
    if abs(gain - 1 - MARGIN) > 1e-9:
        assert length == (best if gain >= 1 + MARGIN else 0)
