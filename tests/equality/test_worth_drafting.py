"""``auto`` options: where drafts do not stand decoding is greedy, with the same output."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from fairseq_aggdec.methods import gad as gad_method
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)

GAD, BLOCKWISE = "gad", "blockwise"
BATCHES = 40


def models(decoding: str, seed: int) -> tuple[Any, Any]:
    """A verifier and its drafter, both random."""
    if decoding == GAD:
        drafter = make_model(make_task(), 2, "nar_drafter", block_size=5, slot_chain=True)
        return make_model(make_task(), seed), drafter
    options = {"block_size": 5, "head_layout": "per-head", "head_hidden_dim": 8}
    return make_model(make_task(), seed, "blockwise_transformer", **options), None


def decode(decoding: str, rows: int, seed: int, **options: Any) -> Any:
    """The counters of decoding some batches, whose outputs are stock's."""
    verifier, drafter = models(decoding, seed)
    chosen = {"drafter_path": "drafter.pt"} if decoding == GAD else {}
    task = make_task(decoding, **(chosen | options))
    with mock.patch.object(gad_method, "load_drafter", lambda *_: drafter):
        generator = task.build_generator([verifier], generation_options())
    for number in range(BATCHES):
        sample = make_batch(random_sources(number, rows))
        found = task.inference_step(generator, [verifier], sample)
        if number % 10 == 0:
            assert_same([ranked[0] for ranked in found], stock([verifier], sample))
    return task.counters


AUTO = [
    {"draft_tree": "auto"},
    {"draft_tokens": "auto"},
    {"draft_tree": "16", "draft_tokens": "auto"},
]


@pytest.mark.parametrize(("rows", "options"), [(6, AUTO[0]), *((1, one) for one in AUTO)], ids=str)
@pytest.mark.parametrize("decoding", [GAD, BLOCKWISE])
def test_where_drafts_do_not_stand_decoding_is_greedy(
    decoding: str, rows: int, options: dict[str, Any]
) -> None:
    counters = decode(decoding, rows, 6, **options)
    assert (
        counters.undrafted > 0.4 * BATCHES * rows
    )  # the first drafts, of short sentences, are a trial
    assert f"{counters.undrafted} of the sentences were decoded without" in counters.summary()


def test_heads_are_laid_out_before_the_first_batch() -> None:
    model = make_model(make_task(), 2, "blockwise_transformer", block_size=3, slot_chain=True)
    task = make_task(BLOCKWISE)
    generator = task.build_generator([model], generation_options())
    generator.prepare()
    chain = generator.drafter.chain
    task.inference_step(generator, [model], make_batch(random_sources(1, 2)))
    assert chain is not None and generator.drafter.chain is chain
