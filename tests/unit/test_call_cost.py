"""What calls cost: the usual numbers, and lines through made-up times."""

from __future__ import annotations

import pytest

from fairseq_aggdec.budget.call_cost import MEASURED, USUAL, CallCost


@pytest.mark.parametrize("drafter", [False, True])
@pytest.mark.parametrize("by", ["kernels", "cpu", "cuda", "mps"])
def test_a_cost_is_the_usual_one_until_it_was_measured(by: str, drafter: bool) -> None:
    """Made-up times: an iteration of two rows costs as much as 40 positions, and one for each position."""
    cost, usual = CallCost(), USUAL.get(by, USUAL["cuda"]) + 2.0 * drafter
    for number in range(MEASURED + 1):  # the first is no measure
        assert cost.beside(2, by, drafter) == usual
        drafted = 5 + number % 7
        cost.observe(2, drafted, 1e-3 * (40 + 2 + drafted))
    assert cost.beside(2, by, drafter) == pytest.approx(40.0, rel=0.01)
    assert cost.fixed(2, by, drafter) == pytest.approx(21.0, rel=0.01)
    assert cost.beside(1, by, drafter) == usual  # of which nothing is known


def test_a_cost_that_sizes_cannot_tell() -> None:
    """Drafts of one size say nothing; where longer ones seem to be quicker, tokens are free."""
    for slope, spread, expected in ((1e-3, 1, 1.0), (-1e-3, 7, 16.0)):
        cost = CallCost()
        for number in range(2 * MEASURED):
            drafted = 5 + number % spread
            cost.observe(2, drafted, 0.05 + slope * drafted)
        assert cost.beside(2, "cpu") == expected * USUAL["cpu"]


def test_a_cost_has_bounds() -> None:
    for fixed, bound in ((0.0, 2.0), (1e6, 16 * USUAL["cpu"])):
        cost = CallCost()
        for number in range(2 * MEASURED):
            drafted = 5 + number % 7
            cost.observe(2, drafted, 1e-3 * (fixed + drafted))
        assert cost.beside(2, "cpu") == pytest.approx(bound)


def test_the_first_iteration_of_each_kind_is_no_measure() -> None:
    cost = CallCost()
    assert cost.observe(1, 0, 9.0) is None and cost.observe(1, 3, 9.0) is None
    assert cost.observe(1, 0, 1.0) == 1.0 and cost.observe(1, 3, 2.0) == 2.0
    assert cost.observe(1, 0, 30.0) == 2.0  # the machine did something else
    assert cost.observe(4, 3, 9.0) == 9.0  # of another size
