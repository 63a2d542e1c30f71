"""Logits of few slots in one launch, compiled as C++, against the launches that it replaces; who reads them."""

from __future__ import annotations

import random

import pytest
import torch

from fairseq_aggdec.kernels.gpu import logits
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS
from fairseq_aggdec.kernels.gpu.products import MOST_NORMED
from fairseq_aggdec.search.acceptance import AtLeast, TopBeta, exact
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.verification.fused import FusedBookkeeping

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def compare_logits(seed: int, device: torch.device = CPU) -> None:
    """Random slots and vocabularies: the same bits."""
    chance = random.Random(seed)
    dtype, slots = chance.choice([*PRECISIONS]), chance.choice((1, 2, 5, 9, 16, 17, 33))
    each = 16 // dtype.itemsize
    channels = each * chance.choice((1, 4, chance.randint(1, 40), MOST_NORMED[dtype] // each))
    types = chance.choice((8, 43, 8 * chance.randint(1, 80)))
    # `look` divides the groups among the parts evenly.
    groups = -(-types // 8)
    of_a_part = -(-groups // -(-groups // chance.randint(1, logits.MOST)))
    given = slots, channels, types, of_a_part, chance.random() < 0.5, seed
    assert logits.alike(dtype, device, *given), (seed, dtype, given)


@pytest.mark.parametrize("types", [1, 8, 40, 8192, 32768, 33_800, 50_264, 250_002])
@pytest.mark.parametrize("processors", [72, 132])
def test_parts_are_those_that_look_would_read(types: int, processors: int) -> None:
    """Whole groups of eight logits, no more than a warp has lanes, and no part is empty."""
    groups, each = -(-types // 8), logits.groups_of_a_part(types, processors)
    parts = -(-groups // each)
    assert each == -(-groups // parts) and 1 <= each <= logits.MOST
    assert parts <= processors * -(-groups // (processors * logits.MOST))


def test_parts_are_looked_at_where_no_rule_needs_more() -> None:
    rules, ngrams = Rules(1, 3, 2), Rules(1, 3, 2, no_repeat_ngram_size=2)
    asked = [
        FusedBookkeeping(own, accept).symbols
        for own, accept in (
            *((rules, exact), (rules, AtLeast(2, exact)), (rules, TopBeta(1, 9.0))),
            *((rules, TopBeta(2, 1.0)), (ngrams, exact)),
        )
    ]
    assert asked == [(1, 3, 2)] * 3 + [None] * 2
