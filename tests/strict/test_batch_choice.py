"""``--draft-tokens auto`` on a GPU, or on the strict device in its place: batches with drafts and without, in turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fairseq_aggdec.budget.draft_length import AdaptiveDraftLength
from fairseq_aggdec.engine.graphs.capture import made
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case
from tests.strict.test_methods import CHAIN, SIZES, assert_equal

AUTO = {"draft_tokens": "auto"}
BY_NAME = {case.name: case for case in CASES}
DRAFTED = [
    *(
        replace(BY_NAME[name], task=BY_NAME[name].task | AUTO)
        for name in ("gad", "gad, shared encoder", "gad, next, chain, causal", "blockwise, dense")
    ),
    Case(
        "blockwise, layers",
        "blockwise",
        "blockwise_transformer",
        CHAIN | {"head_layers": 1},
        task=AUTO,
    ),
    replace(BY_NAME["gad"], name="gad, nodes auto", task={"draft_tree": "auto"}),
]
TURNS = [False, False, True, True, False, True, True, False]


@pytest.mark.parametrize("case", DRAFTED, ids=lambda case: case.name)
def test_batches_in_turn(
    case: Case, gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs are stock's, and graphs are captured once for both kinds of batches."""
    models, drafter = device_cases.random_models(case, SIZES)
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    sample = device_cases.batch(1, 4)
    (expected,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    choice = ready.generator.drafter.draft_length
    assert isinstance(choice, AdaptiveDraftLength) and ready.generator.drafter.trees is None
    drafted, graphs = [], []
    for turn in TURNS:
        pays = {"pays": turn, "tries": 0}
        monkeypatch.setattr(choice, "start", lambda *_, now=pays: vars(choice).update(now))
        before = ready.task.counters.drafted
        assert_equal(ready.decode(sample, None), expected, gpu)
        drafted.append(ready.task.counters.drafted > before)
        graphs.append(made.graphs)
    assert drafted == TURNS
    # By then each kind had come twice since the memory of drafts had grown to its size.
    assert graphs[5] == graphs[-1]
