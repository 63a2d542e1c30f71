"""Drafts of which any number of tokens stands, made on the device or on the host: the verifier's output, whatever."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft
from scripts.forced_drafts import ForcedDrafter
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import Case
from tests.strict.test_methods import SIZES, assert_equal

BLOCK = 5


class Prompter(Drafter):
    """Drafts what the output will be, but for some tokens.

    Args:
        outputs: of the sentences, by index.
        chance: of a token to be right.
    """

    def __init__(self, outputs: Sequence[Sequence[int]], chance: float):
        self.outputs, self.chance = outputs, chance
        self.random = random.Random(5)

    def draft(self, state: DecodeState) -> Draft:
        blocks, room = [], []
        for row in state.rows:
            following = [*self.outputs[row.index][row.position :], *[7] * BLOCK][:BLOCK]
            right = [self.random.random() < self.chance for _ in following]
            blocks.append([t if ok else 4 + t % 20 for t, ok in zip(following, right, strict=True)])
            room.append(self.random.randint(0, min(BLOCK, row.end - row.position)))
        return Draft([block[:most] for block, most in zip(blocks, room, strict=True)])


OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"min_len": 8}, {"max_len_b": 7}, {"unkpen": -3.0}], ids=str
)


@pytest.mark.parametrize("chance", [0.5, 0.95])
@OPTIONS
def test_any_draft_gives_the_verifiers_output(
    options: dict[str, Any], chance: float, gpu: torch.device, tmp_path: Path
) -> None:
    case = Case("prompted", "greedy", generation=options)
    models, _ = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(9, 5)
    (expected,) = device_cases.expected(case, models, None, tmp_path, [sample])
    ready = device_cases.prepared(case, models, None, tmp_path, gpu)
    outputs = [ranked[0]["tokens"].tolist() for ranked in expected]
    ready.generator.drafter = Prompter(outputs, chance)
    assert_equal(ready.decode(sample, None), expected, gpu)
    counters = ready.task.counters
    assert 0 < counters.accepted <= counters.drafted
    assert chance > 0.9 or counters.accepted < counters.drafted


@pytest.mark.parametrize("kind", ["tree", "random-tree"])
@OPTIONS
def test_any_tree_gives_the_verifiers_output(
    options: dict[str, Any], kind: str, gpu: torch.device, tmp_path: Path
) -> None:
    case = Case("grown", "greedy", generation=options)
    models, _ = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(9, 5)
    (expected,) = device_cases.expected(case, models, None, tmp_path, [sample])
    ready = device_cases.prepared(case, models, None, tmp_path, gpu)
    outputs = dict(enumerate(ranked[0]["tokens"].tolist() for ranked in expected))
    types = len(ready.task.target_dictionary)
    ready.generator.drafter = ForcedDrafter(kind, BLOCK, types, outputs)
    assert_equal(ready.decode(sample, None), expected, gpu)
    assert 0 < ready.task.counters.accepted < ready.task.counters.drafted
