"""The kernels of a GPU, compiled as C++, against PyTorch's operators in random cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.emulated.comparing import COMPARED, compare_searches

COMPARISONS = [one for one in itertools.chain(*COMPARED.values()) if one is not compare_searches]


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("compare", COMPARISONS)
def test_kernels_do_what_operators_do(compare: Callable[[int], None]) -> None:
    for seed in range(200):
        compare(seed)
