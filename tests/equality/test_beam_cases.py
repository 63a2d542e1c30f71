"""Random models, options and batches: the n-best lists of stock, or a tie."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from fairseq_aggdec.audit.equality import TIE_MARGIN
from fairseq_aggdec.audit.nbest_equality import StockSteps, difference, tokens_of
from tests.equality.test_beam import assert_same_nbest, generators, ours, stock
from tests.equality.test_cached_decoder import VARIANTS
from tests.support import (
    WORDS,
    make_batch,
    make_model,
    make_task,
    random_sources,
    trained_copier,
)


@pytest.fixture(scope="module")
def copier() -> Any:
    return trained_copier()[1]


def random_case(seed: int, copier: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """A model, a batch, forced prefixes and options, all at random."""
    chance = random.Random(seed)
    model = copier
    if chance.random() < 0.5:
        form = chance.choice(list(VARIANTS.values()))
        model = make_model(make_task(), seed, **form)
    sample = make_batch(
        random_sources(seed, chance.randint(1, 6), longest=14), chance.random() < 0.5
    )
    options: dict[str, Any] = {"beam": chance.randint(2, 10), "max_len_b": chance.randint(6, 20)}
    prefix = None
    if chance.random() < 0.2:
        rows, width = len(sample["id"]), chance.randint(1, 4)
        prefix = torch.tensor(
            [[chance.randint(4, WORDS) for _ in range(width)] for _ in range(rows)]
        )
        for row in prefix:  # some are shorter
            row[chance.randint(1, width) :] = 1
    for name, values in (
        ("min_len", [2, 5]),
        ("max_len_a", [0.5, 1.0]),
        ("unkpen", [-2.0, 2.0]),
        ("lenpen", [0.3, 2.0]),
        ("unnormalized", [True]),
        ("temperature", [0.5, 2.0]),
        ("no_repeat_ngram_size", [2, 3]),
    ):
        if chance.random() < 0.25:
            options[name] = chance.choice(values)
    return model, sample, prefix, options


def is_tie(model: Any, sample: Any, prefix: Any, options: Any) -> bool:
    """Whether stock itself hardly prefers its own lists where ours differ."""
    mine, oracle = generators(model, **options)
    oracle.search = steps = StockSteps(oracle.search)
    found, expected = (
        make_task("stock").inference_step(generator, [model], sample, prefix_tokens=prefix)
        for generator in (mine, oracle)
    )
    return all(
        tokens_of(a) == tokens_of(b)
        or difference(a, b, steps, mine.searches[row], row)[1] < TIE_MARGIN["fp32"]
        for row, (a, b) in enumerate(zip(expected, found, strict=True))
    )


def test_random_cases(copier: Any, pytestconfig: pytest.Config) -> None:
    """Models, batches, beams and options together; more of them with ``--cases``."""
    ties, cases = [], pytestconfig.getoption("--cases")
    for seed in range(cases):
        model, sample, prefix, options = random_case(seed, copier)
        found, expected = (f([model], sample, prefix, **options) for f in (ours, stock))
        if [tokens_of(a) for a in found] == [tokens_of(b) for b in expected]:
            assert_same_nbest(found, expected)
        else:
            assert is_tie(model, sample, prefix, options), (seed, options, prefix)
            ties.append(seed)
    print(f"{cases} cases, ties: {ties}")
    assert len(ties) <= 0.01 * cases
