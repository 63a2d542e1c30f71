"""The table of products by rows: its numbers fit each other."""

from __future__ import annotations

import pytest

from fairseq_aggdec.kernels.library import kernels
from scripts.recipes import product_rates

pytestmark = pytest.mark.skipif(kernels() is None, reason="no compiled kernels")


@pytest.mark.parametrize("int8", [False, True])
def test_rates_fit_the_times_and_the_sizes(int8: bool) -> None:
    chain = product_rates.products(channels=8, inner=24, layers=2, types=40, int8=int8)
    assert [(product.outputs, product.inputs) for product in chain[-3:]] == [
        (24, 8),
        (8, 24),
        (40, 8),
    ]
    one, three = product_rates.rates("kind", chain, repeats=2, rows=(1, 3))
    operations = 2 * (2 * (24 * 8 + 3 * 8 * 8 + 2 * 24 * 8) + 40 * 8)
    assert (one.rows, one.of_one_row, three.rows) == (1, 1.0, 3)
    assert one.rate * one.seconds * 1e9 == pytest.approx(operations)
    assert three.rate * three.seconds * 1e9 == pytest.approx(3 * operations)
    assert three.of_one_row == pytest.approx(three.seconds / one.seconds)
