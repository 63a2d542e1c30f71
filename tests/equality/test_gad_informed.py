"""Drafts that are right here and there, under random options: the verifier's output."""

from __future__ import annotations

import functools
import random
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.budget.draft_length import AdaptiveDraftLength, DraftLength
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.windows.draft import Draft
from tests.equality.test_gad import EOS, VARIANTS, drafter, handed_over
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
)


@pytest.fixture
def gad(monkeypatch: pytest.MonkeyPatch) -> Any:
    return handed_over(monkeypatch)


# -- drafts that are right here and there


class Informed(NarDrafter):
    """Says what the verifier will write, each token with a chance.

    Attributes:
        output: of each sentence of the batch.
        chance: that a token is known.
        blocks: drafts stay on the device, as on CUDA: with what follows ``</s>``.
    """

    output: list[list[int]]
    chance: float
    blocks: bool

    def start(self, sample: Any, verifier: Any, state: Any) -> None:
        super().start(sample, verifier, state)
        self.luck = random.Random(1)

    def logits(self, state: Any, block_size: int) -> Tensor:
        logits = super().logits(state, block_size).clone()
        for row, block in zip(state.rows, logits, strict=True):
            known = self.output[row.index][row.position : row.position + block_size]
            for slot, token in enumerate(known):
                if self.luck.random() < self.chance:
                    block[slot, token] = torch.inf
        return logits

    def draft(self, state: Any) -> Any:
        found = super().draft(state)
        if not self.blocks or not any(found.lengths):
            return found
        width = max(found.lengths)
        room = [min(width, row.end - row.position) for row in state.rows]
        filled = [[*tokens, *[EOS, 5] * width][:width] for tokens in found.tokens]
        return Draft([row[:most] for row, most in zip(filled, room, strict=True)])


@settings(max_examples=20)
@given(
    seed=st.integers(0, 3),
    rows=st.integers(1, 9),
    members=st.integers(1, 2),
    block_size=st.sampled_from(["1", "2", "4", "7", "auto"]),
    chance=st.sampled_from([0.5, 0.9, 1.0]),
    blocks=st.booleans(),
    variant=st.sampled_from(sorted(VARIANTS)),
    longest=st.sampled_from([7, 64]),
    options=st.fixed_dictionaries(
        {"max_len_b": st.integers(4, 20)},
        optional={
            "max_len_a": st.sampled_from([0.5, 1.2]),
            "min_len": st.integers(1, 4),
            "unkpen": st.floats(0, 3),
            "lenpen": st.floats(0, 2),
            "unnormalized": st.booleans(),
            "temperature": st.floats(0.5, 3),
            "match_source_len": st.booleans(),
        },
    ),
)
def test_options_together(
    seed: int,
    rows: int,
    members: int,
    block_size: str,
    chance: float,
    blocks: bool,
    variant: str,
    longest: int,
    options: dict[str, Any],
) -> None:
    """Any of the options with drafts of which any number of tokens stands, two batches by one generator."""
    verifiers = random_verifiers(longest)[:members]
    task = make_task("gad", draft_tokens=block_size)
    size = AdaptiveDraftLength(7, True) if block_size == "auto" else DraftLength(int(block_size))
    informed = Informed(random_drafter(variant), size)
    informed.chance, informed.blocks = chance, blocks
    with mock.patch.object(task, "build_drafter", return_value=informed):
        generator = task.build_generator(verifiers, generation_options(**options))
    for number in (seed, seed + 10):
        sample = make_batch(random_sources(number, rows))
        expected = stock(verifiers, sample, **options)
        informed.output = [hypothesis["tokens"].tolist() for hypothesis in expected]
        found = task.inference_step(generator, verifiers, sample)
        assert_same([hypotheses[0] for hypotheses in found], expected)


@functools.cache
def random_verifiers(longest: int) -> list[Any]:
    return [make_model(make_task(), seed, max_target_positions=longest) for seed in (5, 6)]


@functools.cache
def random_drafter(variant: str) -> Any:
    return drafter(block_size=7, **VARIANTS[variant])
