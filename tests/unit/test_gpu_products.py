"""The fused products of a GPU, compiled as C++, against PyTorch's operators."""

from __future__ import annotations

import itertools
import random
from unittest import mock

import pytest
import torch

from fairseq_aggdec.kernels.gpu import products
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS
from tests.strict.device.bookkeeping import fused_kernels

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def compare_products(seed: int, device: torch.device = CPU) -> None:
    """A product of random numbers with anything that may be around it."""
    chance = random.Random(seed)
    dtype, choice = chance.choice([*PRECISIONS]), chance.randrange(32)
    each = 16 // dtype.itemsize  # numbers that are read at once
    most = products.MOST_NORMED[dtype] // each
    if not choice & 2:
        most *= 4  # those of a feed-forward network
    inputs = each * chance.choice((1, 4, 5, 16, chance.randint(1, 40), chance.randint(1, most)))
    outputs = chance.choice((1, 8, 12, chance.randint(1, 40), chance.choice((40, 1544))))
    size = chance.choice((1, 3, 8, 9, 16, 17, 32, 33)), inputs, outputs
    with mock.patch.object(products, "HIGH", chance.choice((1, 2, 3))):
        assert products.alike(dtype, device, size, choice), (seed, dtype, size, choice)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_row_has_the_same_product_among_any_rows(dtype: torch.dtype) -> None:
    numbers = torch.randn(43, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    x, norm = numbers[:40], products.Norm(numbers[40], numbers[41], 1e-5)
    weight = numbers[:24].t()
    alone = torch.cat([products.product(row, weight, None, norm=norm) for row in x.split(1)])
    for count, high in itertools.product((7, 16, 40), (1, 2, 3)):
        rows = torch.randperm(40)[:count]
        with mock.patch.object(products, "HIGH", high):
            assert torch.equal(products.product(x[rows], weight, None, norm=norm), alone[rows])


@pytest.mark.parametrize("high, blocks", [(1, 9), (2, 6), (3, 3)])
def test_blocks_compute_so_many_tiles_of_rows(high: int, blocks: int) -> None:
    asked = []
    x, weight = torch.zeros(33, 8), torch.zeros(24, 8).t()
    with (
        mock.patch.object(products, "HIGH", high),
        fused_kernels(lambda name, *given: asked.append((name, given[0]))),
    ):
        products.product(x, weight, None)
    assert asked == [("product", blocks)]


def test_numbers_that_are_none_stay_so() -> None:
    """Whoever looks into the scores of a broken model sees it."""
    x, weight = torch.full((2, 8), torch.nan).half(), torch.ones(8, 8).half()
    x[0] = torch.inf
    found = products.product(x, weight, None, relu=True)
    assert found[0].isinf().all() and found[1].isnan().all()
