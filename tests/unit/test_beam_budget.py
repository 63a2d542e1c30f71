"""What is worth evaluating ahead: learned chances against sums over all that was seen, plans against what they cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.budget.call_cost import USUAL_OF_SEARCH
from fairseq_aggdec.budget.fading import Fading
from fairseq_aggdec.search.beam.budget import (
    ALIKE,
    FORETOLD,
    FORGET,
    GAIN_WEIGHT,
    LEARN_AGAIN,
    LOOK_AGAIN,
    MOST,
    PIECE,
    PRIOR_WEIGHT,
    PRIORS,
    TEXT,
    Budget,
    Guess,
)

Worth = list[tuple[float, float]]

LAST = len(PRIORS[ALIKE]) - 1
LAST_FORETOLD = len(PRIORS[FORETOLD]) - 1


def means(budget: Budget) -> dict[Guess, float]:
    return {
        (why, gap): chance.mean
        for why, chances in budget.chances.items()
        for gap, chance in enumerate(chances)
    }


@given(st.floats(0, 1), st.lists(st.booleans(), max_size=60))
def test_a_chance_is_a_share_that_forgets(prior: float, seen: list[bool]) -> None:
    chance = Fading(FORGET, prior, PRIOR_WEIGHT)
    for used in seen:
        chance.add(used)
    weights = [FORGET**age for age in range(len(seen))][::-1]
    believed = PRIOR_WEIGHT * FORGET ** len(seen)
    used = sum(weight for weight, value in zip(weights, seen, strict=True) if value)
    assert chance.mean == pytest.approx((prior * believed + used) / (believed + sum(weights)))


def taught(budget: Budget, shares: dict[Guess, float]) -> Budget:
    """A budget that has seen many prefixes of each kind."""
    chance = random.Random(1)
    for guess, share in shares.items():
        for _ in range(4000):
            budget.observe(guess, chance.random() < share)
    return budget


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_pays_by_the_cost_of_a_call(device: str, rows: int) -> None:
    """A prefix that is needed with chance p saves p * cost / (rows * beam) of a call and wastes 1 - p."""
    budget = Budget(device, 5, foretells=True)
    shares = {(ALIKE, gap): 0.95 - 0.11 * gap for gap in range(LAST + 1)}
    shares |= {(FORETOLD, gap): 0.9 - 0.2 * gap for gap in range(LAST_FORETOLD + 1)}
    plan = taught(budget, {**shares, (TEXT, 0): 0.9, (PIECE, 0): 0.0}).plan(rows)
    saved = USUAL_OF_SEARCH[device] / (rows * 5)
    found = means(budget)
    assert {guess: found[guess] for guess in shares} == pytest.approx(shares, abs=0.1)
    pays = {guess: mean * saved >= 1 - mean for guess, mean in found.items()}
    for why, farthest in ((ALIKE, plan.farthest), (FORETOLD, plan.foretold)):
        gaps = [gap for (kind, gap), worth in pays.items() if kind == why and worth]
        assert farthest == max(gaps, default=-1)
    assert plan.text == (MOST[device] if pays[TEXT, 0] else 0)
    assert plan.most == MOST[device]


def test_more_sentences_draft_less() -> None:
    budget = taught(Budget("cpu", 5), {(ALIKE, gap): 0.9 - 0.11 * gap for gap in range(LAST + 1)})
    farthest = [budget.plan(rows).farthest for rows in (1, 4, 16, 64, 1024)]
    assert farthest == sorted(farthest, reverse=True)
    assert farthest[0] > farthest[-1] == -1


def test_nothing_is_planned_for_tables_that_nobody_foretells() -> None:
    """Their chances would never be learned: what is believed at first would be searched for in every call."""
    for batches in range(1, 2 * LOOK_AGAIN + 1):
        budget = Budget("cpu", 5)
        budget.batches = batches
        assert budget.plan(1).foretold == -1


def test_kinds_are_learned_apart() -> None:
    budget = Budget("cpu", 5)
    before = means(budget)
    assert before == pytest.approx(
        {(why, gap): prior for why, priors in PRIORS.items() for gap, prior in enumerate(priors)}
    )
    budget.observe((ALIKE, 2), used=True)
    budget.observe((ALIKE, LAST + 90), used=True)  # counts with the farthest
    budget.observe((FORETOLD, 1), used=False)
    budget.observe((TEXT, 0), used=False)
    after = means(budget)
    changed = {guess for guess in before if before[guess] != after[guess]}
    assert changed == {(ALIKE, 2), (ALIKE, LAST), (FORETOLD, 1), (TEXT, 0)}
    assert after[ALIKE, 2] > before[ALIKE, 2]
    assert after[TEXT, 0] < before[TEXT, 0]


def test_a_text_that_is_no_good_is_tried_with_one_word_now_and_then() -> None:
    budget, words = taught(Budget("cpu", 5), {(TEXT, 0): 0.0, (PIECE, 0): 0.0}), []
    for budget.batches in range(1, 2 * LOOK_AGAIN + 1):
        words.append(budget.plan(1).text)
    assert words == 2 * [1, *[0] * (LOOK_AGAIN - 1)]
    assert budget.plan(1).piece == 0
    assert taught(Budget("cpu", 5), {(TEXT, 0): 1.0}).plan(1).text == MOST["cpu"]


def test_what_is_foretold_is_tried_now_and_then() -> None:
    shares = {(FORETOLD, gap): 0.0 for gap in range(LAST_FORETOLD + 1)}
    budget, farthest = taught(Budget("cpu", 5, foretells=True), shares), []
    for budget.batches in range(1, 2 * LOOK_AGAIN + 1):
        farthest.append(budget.plan(1).foretold)
    assert farthest == 2 * [0, *[-1] * (LOOK_AGAIN - 1)]


def calls(gain: float, prefixes: float, budget: Budget, needed: float = 5.0) -> Worth:
    """Ten calls with a search ahead for one sentence: the tokens that each gained, and the prefixes that it evaluated.

    Args:
        needed: prefixes that a plain call evaluates.
    """
    cost = budget.plan(1).prefix_cost
    return [(gain * (1.0 + cost * needed), 1.0 + cost * prefixes)] * 10


def looked_ahead(budget: Budget, gain: float, prefixes: float) -> list[int]:
    """Which of the next batches looked ahead."""
    looked = []
    for _ in range(2 * LOOK_AGAIN):
        budget.batches += 1
        if budget.plan(1).farthest >= 0:
            looked.append(budget.batches)
            budget.gained(calls(gain, prefixes, budget))
    return looked


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("gain", "prefixes", "looks"),
    [
        (1.05, 5.7, False),  # translation
        (1.25, 60.0, False),  # many prefixes, few tokens
        (7.4, 40.0, True),  # near copies
    ],
)
def test_looking_ahead_goes_on_while_it_pays(
    device: str, gain: float, prefixes: float, looks: bool
) -> None:
    budget = Budget(device, 5)
    looked = looked_ahead(budget, gain, prefixes)
    if looks:
        assert looked == list(range(1, 2 * LOOK_AGAIN + 1))
    else:  # at first, and once in so many batches
        first = [batch for batch in looked if batch < LOOK_AGAIN]
        assert first == list(range(1, len(first) + 1))
        assert len(first) < 4
        assert looked[len(first) :] == [LOOK_AGAIN + 1]


def test_on_a_cpu_prefixes_count() -> None:
    """There a call of many prefixes takes longer: two tokens do not pay for 60 prefixes, but they do for 10."""
    assert not Budget("cuda", 5).plan(4).prefix_cost
    assert Budget("cpu", 5).plan(4).prefix_cost == 4 / USUAL_OF_SEARCH["cpu"]
    assert len(looked_ahead(Budget("cpu", 5), 2.0, 60.0)) < 6
    assert len(looked_ahead(Budget("cpu", 5), 2.0, 10.0)) == 2 * LOOK_AGAIN
    assert len(looked_ahead(Budget("cuda", 5), 2.0, 60.0)) == 2 * LOOK_AGAIN


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_text_that_changes_is_looked_ahead_in_again(device: str) -> None:
    """Few trials tell, however long the text before was."""
    budget = Budget(device, 5)
    for _ in range(20):
        looked_ahead(budget, 1.0, 6.0)
    assert not budget.pays
    for _ in range(2):
        looked_ahead(budget, 7.4, 40.0)
    assert budget.pays


def test_batches_of_another_size_are_learned_apart() -> None:
    """Large batches draft no texts; that they gain nothing says nothing about single sentences."""
    budget = Budget("cpu", 5)
    looked_ahead(budget, 1.0, 6.0)
    assert not budget.pays
    for rows, pays in ((8, True), (1, False), (9, True)):
        budget.batches += 1
        for left in (rows, 1):
            budget.plan(left)
            assert budget.pays == pays


def test_batches_without_a_search_ahead_teach_nothing() -> None:
    budget = Budget("cpu", 5)
    before = budget.gain.mean
    budget.gained([])
    assert (budget.gain.mean, budget.gain.weight) == (before, GAIN_WEIGHT)


@pytest.mark.parametrize("chance", [0.5, 0.9, 0.97, 1.0])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_piece_is_as_long_as_its_last_token_is_worth_it(chance: float, rows: int) -> None:
    """Every token is a copy if those before it are."""
    budget = taught(Budget("cpu", 5), {(PIECE, 0): chance})
    found, least = budget.chances[PIECE][0].mean, 1 / (1 + USUAL_OF_SEARCH["cpu"] / (rows * 5))
    length = budget.plan(rows).piece
    assert length <= MOST["cpu"]
    assert length == 0 or found**length >= least
    assert length == MOST["cpu"] or found ** (length + 1) < least


def test_what_is_not_requested_is_looked_at_now_and_then() -> None:
    budget = Budget("cpu", 5)
    learn = [budget.plan(1).learn for _ in range(2 * LEARN_AGAIN)]
    assert [call for call, asked in enumerate(learn, 1) if asked] == [LEARN_AGAIN, 2 * LEARN_AGAIN]
