"""--block-size auto: a machine and a drafter are simulated, and the choice must be near the best one."""

from __future__ import annotations

import random

import pytest

from fairseq_aggdec.decoding.block_size import LearnedBlockSize, Times

LARGEST = 12


def seconds(size: int, cost: float) -> float:
    """A draft costs ``cost`` greedy steps and a little for every token."""
    return 1.0 if size == 0 else 1.1 + cost + 0.05 * size


def tokens_per_second(size: int, stands: float, cost: float) -> float:
    return sum(stands**i for i in range(size + 1)) / seconds(size, cost)


def simulate(
    stands: float, cost: float, iterations: int = 3000, rows: int = 2, hiccups: float = 0.0
) -> tuple[float, int]:
    """Tokens per greedy step and row over a run, and the last choice.

    ``hiccups``: share of the iterations that seem thirty times as long, because the machine was busy.
    """
    chance, chooser = random.Random(7), LearnedBlockSize(LARGEST)
    tokens, spent, size = 0, 0.0, 0
    for _ in range(iterations):
        size = chooser.choose(rows)
        accepted = []
        for _row in range(rows):
            stood = 0
            while stood < size and chance.random() < stands:
                stood += 1
            accepted.append(stood)
        measured = seconds(size, cost) * chance.uniform(0.9, 1.1)
        if chance.random() < hiccups:
            measured *= 30
        emitted = [stood + 1 for stood in accepted]
        chooser.observe([size] * rows, accepted, emitted, measured)
        tokens += sum(accepted) + rows
        spent += seconds(size, cost)
    return tokens / rows / spent, size


@pytest.mark.parametrize("cost", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("stands", [0.0, 0.3, 0.7, 0.95])
def test_close_to_the_best_fixed_size(stands: float, cost: float) -> None:
    best = max(tokens_per_second(size, stands, cost) for size in range(LARGEST + 1))
    speed, _ = simulate(stands, cost)
    assert speed > 0.9 * best
    assert speed > 0.95  # never slower than greedy by more than 5 %


@pytest.mark.parametrize("cost", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("stands", [0.3, 0.7, 0.95])
def test_a_busy_machine_does_not_mislead(stands: float, cost: float) -> None:
    calm, _ = simulate(stands, cost)
    assert simulate(stands, cost, hiccups=0.03)[0] > 0.9 * calm


def test_a_block_beyond_the_end_of_the_sentence_brings_nothing() -> None:
    """A drafter that is always right, one token before the end: blocks of one are chosen, not of twelve."""
    chooser = LearnedBlockSize(LARGEST)
    for _ in range(500):
        size = chooser.choose(1)
        right = min(size, 1)
        chooser.observe([right], [right], [right + 1], seconds(size, 0.1))
    assert size == 1


def test_a_slow_draft_does_not_make_short_ones_seem_to_take_no_time() -> None:
    """A line through one slow draft and another would give a draft of one token a negative time."""
    times = Times()
    for size, seconds in ((0, 1.0), (10, 30.0), (5, 1.6), *[(1, 1.35)] * 20):
        times.add(size, seconds)
        if size:
            assert all(times.estimate(k) >= times.estimate(0) for k in range(1, 11))


def batch_seconds(rows: int, size: int) -> float:
    """Few sentences wait for the weights, many for the arithmetic: there a draft costs nearly what its tokens do."""
    return max(1.0, 0.1 * rows * (1 + size)) + (0.8 if size else 0.0)


@pytest.mark.parametrize("stands", [0.0, 0.4, 0.7])
@pytest.mark.parametrize("batches", [4, 40])
def test_batches_that_shrink(stands: float, batches: int) -> None:
    """No number of sentences begins with drafts that do not pay: a short run is as close to greedy as a long one."""
    chance, chooser = random.Random(3), LearnedBlockSize(LARGEST)
    spent = one_by_one = 0.0
    for _ in range(batches):
        lengths = [chance.randrange(8, 24) for _ in range(32)]
        alive = [sum(length > step for length in lengths) for step in range(max(lengths))]
        one_by_one += sum(batch_seconds(rows, 0) for rows in alive)
        left = lengths
        while left:
            size = chooser.choose(len(left))
            stood = []
            for tokens in left:
                right = 0
                while right < min(size, tokens) and chance.random() < stands:
                    right += 1
                stood.append(right)
            gained = [min(right + 1, tokens) for right, tokens in zip(stood, left, strict=True)]
            took = batch_seconds(len(left), size)
            chooser.observe([size] * len(left), stood, gained, took)
            spent += took
            left = [
                tokens - gain for tokens, gain in zip(left, gained, strict=True) if tokens > gain
            ]
    assert spent < 1.05 * one_by_one


def test_the_last_token_of_a_sentence_is_not_counted_twice() -> None:
    """Drafts whose </s> stands gain what stands; a right draft of two is worth two tokens then, not three."""
    chooser, drafts = LearnedBlockSize(2), 0
    for _ in range(600):
        size = chooser.choose(1)
        drafts += size > 0
        # A draft takes 2.5 times as long: worth it for three tokens, not for two.
        chooser.observe([size], [size], [max(size, 1)], 2.5 if size else 1.0)
    assert drafts < 60


def test_reading_the_source_for_a_draft_is_no_part_of_every_draft() -> None:
    chooser = LearnedBlockSize(4)
    for turn in range(400):
        size = chooser.choose(1)
        once = 9.0 if size and turn % 200 == 0 else 0.0
        chooser.observe([size], [size], [size + 1], (1.5 if size else 1.0) + once, once)
    assert size == 4


def test_a_hopeless_drafter_is_left_alone() -> None:
    assert simulate(stands=0.02, cost=2.0)[1] == 0


def test_choices_are_possible_sizes() -> None:
    chooser = LearnedBlockSize(1)
    for _ in range(50):
        size = chooser.choose(1)
        assert size in (0, 1)
        chooser.observe([size], [0], [1], 1.0)


def test_sentences_without_room_for_a_draft_are_no_measure_of_drafting() -> None:
    chooser = LearnedBlockSize(4)
    for _ in range(20):
        chooser.choose(3)
        chooser.observe([0, 0, 0], [0, 0, 0], [1, 1, 1], 1.0)
    (times,) = chooser.times.values()
    assert times.k.weight == 0
