"""How much is drafted where a clock must not decide: in half precision, whose products round by what is drafted."""

from __future__ import annotations

import math

import pytest
import torch

from fairseq_aggdec.budget.account import RESTING_BATCHES, CountedAccount
from fairseq_aggdec.budget.call_cost import MEASURED
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.shared.amounts import choosing


def test_in_half_precision_tokens_are_counted_and_no_clock_is_read() -> None:
    """Drafts that hardly ever stand are left out but now and then, and come back when they stand again."""
    counted, drafted = CountedAccount(4), []
    for gain in [1.0] * 40 + [4.0] * 80:
        counted.start([[2]])
        drafted.append(counted.plan(1))
        counted.observe(drafted[-1], [gain], math.nan)
        counted.batch_ended(gain)
    assert drafted[0] == 4 and drafted[1 : 1 + RESTING_BATCHES] == [0] * RESTING_BATCHES
    assert drafted[1 + RESTING_BATCHES] == 4 and set(drafted[-5:]) == {4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_decides_how_much_is_drafted(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(1, 1, dtype=dtype)
    chosen = choosing(Settings(decoding="gad", draft_tokens="auto"), 4, model)
    assert chosen.learned == (dtype is torch.float32)
    trees = choosing(Settings(decoding="gad"), 4, model)
    for _ in range(2 * MEASURED):
        trees.observe(3, [1], 1.0)
    assert bool(trees.cost.lines) == (dtype is torch.float32)
