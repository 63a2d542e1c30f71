"""``--draft-tokens auto``, ``--draft-tree auto``: a simulated drafter drafts where that usually pays."""

from __future__ import annotations

import random

import pytest

from fairseq_aggdec.budget.draft_length import (
    PRIOR_WEIGHT,
    RESTING_BATCHES,
    TRIES,
    AdaptiveDraftLength,
)
from fairseq_aggdec.budget.price import DRAFTER, USUAL, usual_price

NODES, LENGTH = 5, 25


class Simulation:
    """Decodes batches of sentences of one length with trees of five tokens, of which a path stands by chance.

    Attributes:
        spent, greedy: what that usually costs, in positions, and what decoding one by one does.
    """

    def __init__(self, draft_length: AdaptiveDraftLength, by: str = "kernels"):
        self.draft_length, self.by, self.random = draft_length, by, random.Random(7)
        self.spent = self.greedy = 0.0
        self.drafted = 0

    def batch(self, rows: int, chance: float) -> None:
        left, cost = [LENGTH] * rows, USUAL[self.by]
        self.greedy += LENGTH * (cost + rows)
        self.draft_length.start(rows, usual_price(self.by))
        while left:
            size = min(NODES, self.draft_length.plan(len(left)))
            gained = [1] * len(left)
            if size:
                self.drafted += 1
                gained = [1 + self._stood(chance) for _ in left]
            self.spent += cost + len(left) * (1 + size) + DRAFTER * bool(size)
            self.draft_length.observe(len(left), size * len(left), sum(gained))
            left = [most - own for most, own in zip(left, gained, strict=True) if most > own]

    def _stood(self, chance: float) -> int:
        stood = 0
        while stood < NODES and self.random.random() < chance:
            stood += 1
        return stood


def simulated(rows: int, chance: float, batches: int) -> Simulation:
    found = Simulation(AdaptiveDraftLength(10, weighs=True))
    for _ in range(batches):
        found.batch(rows, chance)
    return found


@pytest.mark.parametrize("rows", [1, 2])
def test_what_pays_is_drafted_from_the_first_batch_on(rows: int) -> None:
    found = simulated(rows, 0.85, 60)
    assert found.spent < 0.9 * found.greedy


@pytest.mark.parametrize(("rows", "batches"), [(1, 2000), (8, 300), (32, 300)])
def test_where_nothing_stands_hardly_anything_is_lost(rows: int, batches: int) -> None:
    found = simulated(rows, 0.0, batches)
    assert found.spent < 1.02 * found.greedy


@pytest.mark.parametrize("rows", [8, 32])
def test_large_batches_are_decoded_without(rows: int) -> None:
    """Their calls are full: a position more costs as much as it does alone, until few sentences are left."""
    found = simulated(rows, 0.7, 300)
    assert found.spent < 1.01 * found.greedy


def test_drafts_come_back_when_they_stand_again() -> None:
    found = simulated(1, 0.0, 200)
    before = found.drafted
    for _ in range(10 * RESTING_BATCHES):
        found.batch(1, 0.9)
    assert found.drafted > before + 500


@pytest.mark.parametrize("weighs", [True, False])
def test_what_was_learned_is_forgotten(weighs: bool) -> None:
    """Whether the next batch is drafted then depends on none before it."""
    new, draft_length = AdaptiveDraftLength(4, weighs), AdaptiveDraftLength(4, weighs)
    for one in (new, draft_length):
        one.start(1, usual_price("kernels"))
    for _ in range(200):
        draft_length.observe(1, 4, 1)
    draft_length.start(1, usual_price("kernels"))
    assert new.plan(1) == 4 and draft_length.plan(1) == 0
    draft_length.forget()
    draft_length.start(1, usual_price("kernels"))
    assert draft_length.plan(1) == 4


def test_a_try_is_a_few_drafts_and_comes_after_a_rest() -> None:
    draft_length = AdaptiveDraftLength(4, weighs=True)
    drafted = []
    for _ in range(80 + 2 * RESTING_BATCHES):
        draft_length.start(1, usual_price("kernels"))
        own = 0
        for _ in range(9):
            size = draft_length.plan(1)
            own += size > 0
            draft_length.observe(1, size, 1)
        drafted.append(own)
    assert sum(drafted[:3]) < 1.5 * PRIOR_WEIGHT and set(drafted[3:]) == {0, TRIES}
    first = drafted.index(TRIES, 3)
    assert drafted[first + 1 : first + 1 + RESTING_BATCHES] == [0] * RESTING_BATCHES
