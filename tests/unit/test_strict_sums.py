"""What ``--strict`` rests on: in a call of fixed shape, equal rows give equal bits wherever they stand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.engine.linear import FastLinear
from fairseq_aggdec.engine.slot_attention import attend_by_query
from fairseq_aggdec.windows.masks import additive_mask

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def strided(seed: int, length: int, heads: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    """Keys and values (2, 3, heads, length, size) as the cache stores them: views that are not contiguous."""
    numbers = torch.Generator().manual_seed(seed)
    kv = torch.randn(3, length, 2, heads, size, generator=numbers).to(dtype)
    return [*kv.permute(2, 0, 3, 1, 4).unbind(0)]


@DTYPES
@pytest.mark.parametrize("width", [2, 3, 16])
def test_equal_queries_give_equal_bits(width: int, dtype: torch.dtype) -> None:
    for seed in range(20):
        k, v = strided(seed, 1 + seed, 2, 32, dtype)
        query = torch.randn(3, 2, 1, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)
        found = attend_by_query(query.expand(-1, -1, width, -1), k, v, None)
        assert torch.equal(found, found[:, :, :1].expand_as(found))


@pytest.mark.parametrize("rows_of_mask", [1, 3])
def test_attention_by_query_is_attention(rows_of_mask: int) -> None:
    k, v = strided(1, 9, 2, 8, torch.float32)
    q = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(2))
    hidden = torch.arange(9) > torch.tensor([[3], [4], [6], [8]])
    mask = additive_mask(hidden.expand(rows_of_mask, -1, -1), torch.float32)
    one = additive_mask(hidden[1].expand(3, -1), torch.float32)
    for given in (None, mask, one):
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=given)
        torch.testing.assert_close(attend_by_query(q, k, v, given), expected)


@DTYPES
@pytest.mark.parametrize("pack", [False, True], ids=["as it is", "packed"])
def test_equal_rows_of_a_product_give_equal_bits(pack: bool, dtype: torch.dtype) -> None:
    for rows, inputs, outputs in ((2, 32, 96), (7, 64, 256), (14, 64, 64), (112, 256, 64)):
        product = FastLinear([nn.Linear(inputs, outputs).to(dtype)], pack=pack)
        row = torch.randn(1, inputs, generator=torch.Generator().manual_seed(rows)).to(dtype)
        found = product(row.repeat(rows, 1))
        assert torch.equal(found, found[:1].expand_as(found))
