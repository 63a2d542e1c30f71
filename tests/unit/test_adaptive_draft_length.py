"""How much is drafted where a clock must not decide: in half precision, whose products round by what is drafted."""

from __future__ import annotations

import pytest
import torch

from fairseq_aggdec.budget.draft_length import RESTING_BATCHES, AdaptiveDraftLength, DraftLength
from fairseq_aggdec.budget.price import usual_price
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.shared.amounts import choosing


def test_in_half_precision_tokens_are_counted_and_no_clock_is_read() -> None:
    """Drafts that hardly ever stand are left out but now and then, and come back when they stand again."""
    counted, drafted = AdaptiveDraftLength(4, weighs=False), []
    for gain in [1.0] * 40 + [4.0] * 80:
        counted.start(1, usual_price("cuda half"))
        drafted.append(counted.plan(1))
        counted.batch_ended(gain)
    assert drafted[0] == 4 and drafted[1 : 1 + RESTING_BATCHES] == [0] * RESTING_BATCHES
    assert drafted[1 + RESTING_BATCHES] == 4 and set(drafted[-5:]) == {4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_costs_have_a_say_on_a_cpu(dtype: torch.dtype) -> None:
    """Of many sentences drafts cost more than they gain; in half precision that is decided once for a batch."""
    model = torch.nn.Linear(1, 1, dtype=dtype)
    chosen = choosing(Settings(decoding="gad", draft_tokens="auto"), 4, model)
    assert isinstance(chosen, AdaptiveDraftLength)
    chosen.start(1, usual_price("cpu"))
    assert chosen.plan(1) == 4
    chosen.start(30, usual_price("cpu"))
    left = [chosen.plan(rows) for rows in (30, 20, 1)]  # the last few do not have the sources read
    assert left == ([0, 4, 0] if dtype is torch.float32 else [0, 0, 0])
    assert type(choosing(Settings(decoding="gad"), 4, model)) is DraftLength
