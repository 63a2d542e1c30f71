"""Tables of the best tokens against one number after the other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.search.compiled.tables import by_operators, tables_of
from tests.tables import best_tokens

PAD, UNK = 1, 3


def plain(
    row: list[float], count: int, wanted: int, penalty: float, banned: list[int]
) -> tuple[list[int], list[float], float]:
    total = math.log(sum(math.exp(value) for value in row))
    scores = [value - total for value in row]
    scores[PAD] = -math.inf
    scores[UNK] -= penalty
    needed = scores[wanted]
    for token in banned:
        scores[token] = -math.inf
    best = sorted(range(len(row)), key=lambda token: -scores[token])[:count]
    return best, [scores[token] for token in best], needed


@pytest.mark.parametrize("tables", [tables_of, by_operators])
@given(st.integers(0, 10**9), st.sampled_from([0.0, 3.0, -3.0, math.inf]))
def test_tables_against_one_number_after_the_other(tables: Any, seed: int, penalty: float) -> None:
    generator = torch.Generator().manual_seed(seed)

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    rows, types = number(1, 5), number(5, 60)
    count = number(1, types - 4)
    logits = 3 * torch.randn(rows, types, generator=generator)
    wanted = [number(0, types - 1) for _ in range(rows)]
    banned = [(number(0, rows - 1), number(4, types - 1)) for _ in range(number(0, 3))]
    expected = [
        plain(row, count, wanted[i], penalty, [token for at, token in banned if at == i])
        for i, row in enumerate(logits.tolist())
    ]
    table = best_tokens(logits, count, torch.tensor(wanted), PAD, UNK, penalty, banned, tables)
    assert table.shape == (rows, 2 * count + 1)
    for row, (tokens, scores, needed) in zip(table.tolist(), expected, strict=True):
        possible = sum(score > -math.inf for score in scores)
        assert [int(token) for token in row[count : count + possible]] == tokens[:possible]
        assert row[:count] == pytest.approx(scores, abs=1e-4)
        assert row[2 * count] == pytest.approx(needed, abs=1e-4)


def test_what_is_banned_in_one_row_changes_no_other() -> None:
    """To the bit: which rows stand together depends on drafts."""
    logits, wanted = 3 * torch.randn(60, 37), torch.arange(60) % 37
    alone = best_tokens(logits, 4, wanted, PAD, UNK, banned=[])
    beside = best_tokens(logits, 4, wanted, PAD, UNK, banned=[(0, 5)])
    assert torch.equal(alone[1:], beside[1:])
    assert torch.equal(best_tokens(logits[7:9], 4, wanted[7:9], PAD, UNK, banned=[]), alone[7:9])


def test_no_number_stays_none() -> None:
    logits = torch.randn(2, 9)
    logits[1, 5] = torch.nan
    table = best_tokens(logits, 3, torch.tensor([2, 2]), PAD, UNK)
    assert table[:, 0].isnan().tolist() == [False, True]
