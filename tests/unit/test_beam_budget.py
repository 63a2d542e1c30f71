"""What is worth evaluating ahead: learned chances against sums over all that was seen, plans against what they cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.decoding.beam_budget import (
    CALL_COST,
    FORGET,
    MOST,
    PRIOR,
    PRIOR_OF_TEXT,
    PRIOR_WEIGHT,
    TRIAL,
    Budget,
    Chance,
)

LAST = len(PRIOR) - 1


@given(st.floats(0, 1), st.lists(st.booleans(), max_size=60))
def test_a_chance_is_a_share_that_forgets(prior: float, seen: list[bool]) -> None:
    chance = Chance(prior)
    for used in seen:
        chance.observe(used)
    weights = [FORGET**age for age in range(len(seen))][::-1]
    believed = PRIOR_WEIGHT * FORGET ** len(seen)
    used = sum(weight for weight, value in zip(weights, seen, strict=True) if value)
    assert chance.mean == pytest.approx((prior * believed + used) / (believed + sum(weights)))


def taught(budget: Budget, shares: dict[int | None, float]) -> Budget:
    """A budget that has seen many prefixes of each kind."""
    chance = random.Random(1)
    for gap, share in shares.items():
        for _ in range(4000):
            budget.observe(gap, chance.random() < share)
    return budget


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_pays_by_the_cost_of_a_call(device: str, rows: int) -> None:
    """A prefix that is needed with chance p saves p * cost / (rows * beam) of a call and wastes 1 - p."""
    budget = Budget(device, 5)
    shares = {gap: 0.95 - 0.11 * gap for gap in range(LAST + 1)}
    plan = taught(budget, {**shares, None: 0.9}).plan(rows)
    saved = CALL_COST[device] / (rows * 5)
    means = [chance.mean for chance in budget.behind]
    assert means == pytest.approx(list(shares.values()), abs=0.1)
    pays = [gap for gap, mean in enumerate(means) if mean * saved >= 1 - mean]
    assert plan.farthest == max(pays, default=-1)
    mean = budget.of_text.mean
    assert plan.text == (MOST[device] if mean * saved >= 1 - mean else 0)
    assert plan.most == MOST[device]


def test_more_sentences_draft_less() -> None:
    budget = taught(Budget("cpu", 5), {gap: 0.9 - 0.11 * gap for gap in range(LAST + 1)})
    farthest = [budget.plan(rows).farthest for rows in (1, 4, 16, 64, 1024)]
    assert farthest == sorted(farthest, reverse=True)
    assert farthest[0] > farthest[-1] == -1


def test_kinds_are_learned_apart() -> None:
    budget = Budget("cpu", 5)
    before = [chance.mean for chance in (*budget.behind, budget.of_text)]
    assert before == pytest.approx([*PRIOR, PRIOR_OF_TEXT])
    budget.observe(2, used=True)
    budget.observe(LAST + 90, used=True)  # counts with the farthest
    budget.observe(None, used=False)
    after = [chance.mean for chance in (*budget.behind, budget.of_text)]
    changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert changed == [2, LAST, LAST + 1]
    assert after[2] > before[2]
    assert after[-1] < before[-1]


def test_a_text_that_is_no_good_is_tried_with_one_word_now_and_then() -> None:
    budget, words = taught(Budget("cpu", 5), {None: 0.0}), []
    for budget.batches in range(1, 2 * TRIAL + 1):
        words.append(budget.plan(1).text)
    assert words == 2 * [1, *[0] * (TRIAL - 1)]
    assert taught(Budget("cpu", 5), {None: 1.0}).plan(1).text == MOST["cpu"]
