"""Whether whole batches are drafted for, by the time that they took."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from fairseq_aggdec.budget import batch_account
from fairseq_aggdec.budget.batch_account import BatchAccount

CAPTURE = 40.0  # what the first batches of a kind take besides


class Device:
    """Decodes batches in made-up time: a token of the longest output takes 1, with drafts ``drafted``.

    Some batches, by their number among those of their kind, take ``slow`` times as long. ``told``: a loop on the device
    says which batches are a measure, and what drafts gained.
    """

    def __init__(
        self,
        rows: int,
        drafted: float,
        *,
        slow: dict[tuple[bool, int], float] | None = None,
        gain: float = 3.0,
        told: bool = True,
    ):
        self.rows, self.drafted, self.plain, self.now = rows, drafted, 1.0, 0.0
        self.slow, self.gain, self.told = slow or {}, gain, told
        self.choice, self.chance = BatchAccount(9), random.Random(1)
        self.sizes: list[int] = []
        self.spent = self.greedy = 0.0
        self.begun = {False: 0, True: 0}

    def run(self, batches: int) -> Device:
        with mock.patch.object(batch_account.time, "perf_counter", lambda: self.now):
            for _ in range(batches):
                self._decode()
        return self

    def _decode(self) -> None:
        outputs = [[2] for _ in range(self.rows)]
        self.choice.start(outputs)
        size = self.choice.plan(self.rows)
        for tokens in outputs:
            tokens += [5] * self.chance.randint(5, 30)
        longest = max(map(len, outputs)) - 1
        kind = size > 0
        self.begun[kind] += 1
        seconds = longest * (self.drafted if size else self.plain) * self.chance.uniform(0.97, 1.03)
        seconds *= self.slow.get((kind, self.begun[kind]), 1.0)
        self.spent += seconds
        self.greedy += longest
        clean = self.begun[kind] > 2
        self.now += seconds + CAPTURE * (not clean)
        if self.told:
            self.choice.batch_ended(clean, self.gain if size else 1.0)
        else:
            self.choice.passed()
        self.now += 7.0  # what is done between batches is not decoding
        self.sizes.append(size)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_drafts_that_pay_are_made(rows: int, told: bool) -> None:
    device = Device(rows, drafted=0.6, told=told).run(600)
    assert device.sizes[0] == 0
    assert device.sizes[-300:].count(9) > 290
    if rows == 1:  # a credit; else a try has to be earned
        assert device.sizes[5:15].count(9) == 10
    else:
        assert device.sizes[100:].count(9) > 480


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("drafted", [1.0, 1.3, 3.0])
@pytest.mark.parametrize("batches", [60, 1000])
def test_drafts_that_do_not_pay_cost_next_to_nothing(
    rows: int, drafted: float, batches: int
) -> None:
    gain = 1.1 if drafted == 3.0 else 2.5
    device = Device(rows, drafted, gain=gain).run(batches)
    # Beside what is lost in the credit of one sentence at a time, whose first tries are no measure yet.
    tries = 1 if gain < 1.6 else 5
    allowed = 0.02 * device.greedy + (tries * 30 * (drafted - 1.0) if rows == 1 else 0.0)
    assert device.spent <= device.greedy + allowed + 2.0
    assert device.sizes[-1] == 0 or drafted == 1.0


@pytest.mark.parametrize("place", [3, 4, 5])
@pytest.mark.parametrize("factor", [2.0, 10.0])
@pytest.mark.parametrize(("drafted", "kind"), [(1.3, False), (0.6, True), (0.6, False)])
def test_one_slow_batch_decides_nothing(
    drafted: float, kind: bool, factor: float, place: int
) -> None:
    device = Device(1, drafted, slow={(kind, place): factor}).run(300)
    assert device.sizes[-200:].count(9) > 190 if drafted < 1 else device.sizes[-200:].count(9) < 10


def test_what_cannot_pay_is_known_by_one_batch() -> None:
    device = Device(8, drafted=2.0, gain=1.2).run(400)
    assert 1 <= device.sizes.count(9) <= 2


def test_a_machine_that_changes_is_noticed() -> None:
    device = Device(1, drafted=0.6).run(300)
    device.drafted = 2.0
    device.run(300)
    assert device.sizes[-250:].count(9) < 10
    device.drafted = 0.5
    device.run(9000)
    assert device.sizes[-20:].count(9) > 15
    device.plain = 0.3  # which nothing but a batch without drafts can tell
    device.run(2000)
    assert device.sizes[-200:].count(9) < 10


def test_sizes_of_batches_are_apart() -> None:
    device = Device(1, drafted=0.5).run(60)
    assert device.sizes[-1] == 9
    device.rows = 32
    device.run(1)
    assert device.sizes[-1] == 0


def test_a_batch_that_never_began_is_forgotten() -> None:
    choice = BatchAccount(4)
    for _ in range(3):
        choice.start([[2]])
        choice.passed()
    assert not any(kind.count for kind in choice.kinds.values())
