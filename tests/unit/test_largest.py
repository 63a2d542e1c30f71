"""The largest of each row against ``max``, with ties and what is not a number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.kernels.gpu.largest import first_largest


def plain(row: list[float]) -> int:
    keys = [(number != number, number) for number in row]  # NaN first
    best = next((i for i, (missing, _) in enumerate(keys) if missing), None)
    return row.index(max(row)) if best is None else best


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 2.0, -torch.inf, torch.inf, torch.nan])
TABLES = st.integers(1, 30).flatmap(
    lambda size: st.lists(st.lists(NUMBERS, min_size=size, max_size=size), min_size=1, max_size=4)
)


@given(TABLES)
def test_first_of_the_largest(rows: list[list[float]]) -> None:
    x = torch.tensor(rows)
    assert first_largest(x).tolist() == [plain(row) for row in rows]
    assert torch.equal(first_largest(x), x.max(-1).indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_and_views(dtype: torch.dtype) -> None:
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(first_largest(x), x.max(-1).indices)
    assert torch.equal(first_largest(x[:, 5:42]), x[:, 5:42].max(-1).indices)
    turned = torch.randn(30, 3, generator=torch.Generator().manual_seed(2)).to(dtype).t()
    assert torch.equal(first_largest(turned), turned.max(-1).indices)
