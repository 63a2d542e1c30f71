"""The loop on the device decides what the loop on the host decides: tokens, scores, iterations and what stood."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fairseq_aggdec.budget.pace import Pace
from fairseq_aggdec.search.engines import ENGINES
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case

SIZES = {"encoder_layers": 1, "decoder_layers": 2}
# What the host has to see in every iteration, or reads where no captured step would find it.
SEEN = (
    "shortlist",
    "history",
    "trees",
    "auto",
    "source copy",
    "strict",
)
FOLLOWED = [
    case
    for case in CASES
    if case.decoding in ("greedy", "iad", "gad", "blockwise", "nar")
    and not any(word in case.name for word in SEEN)
]
# Drafts decide what is written: a draft that differs is seen.
# Its last block goes on behind the last place of the board.
FOLLOWED.append(
    Case(
        "nar, as long as the board",
        "nar",
        drafter=("nar_drafter", {"block_size": 6}),
        generation={"min_len": 60, "max_len_b": 61, "no_repeat_ngram_size": 3},
        stock=False,
    )
)
RELAXED = [
    replace(case, name=f"{case.name}, relaxed", task=case.task | {"acceptance": "top-beta:12:9"})
    for case in FOLLOWED
    if case.decoding not in ("greedy", "nar") and "acceptance" not in case.task
]
CPU = torch.device("cpu")


@pytest.mark.parametrize("case", FOLLOWED + RELAXED, ids=lambda case: case.name)
def test_both_loops_decide_alike(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (
        case.decoding == "iad"
    ):  # learned lengths are by row and iteration on the host, by batch on the device
        case = replace(case, task=device_cases.LENGTH | case.task)
    models, drafter = device_cases.random_models(case, SIZES)
    plain, alone = (device_cases.prepared(case, models, drafter, tmp_path, CPU) for _ in range(2))
    # Without graphs and on a CPU.
    board, *others = ENGINES
    alone.generator._engine = lambda request: (
        next(one for one in others if one.gap(request) is None)
        if request.size_on_device is None
        else board
    )
    for seed, rows in enumerate((4, 1, 3, 4)):
        # An iteration in vain or none
        monkeypatch.setattr(Pace, "ahead", seed % 2)
        sample = device_cases.batch(seed, len(case.prefix or ()) or rows)
        prefix = device_cases.prefix_of(case, len(sample["id"]))
        for (expected,), (found,) in zip(
            plain.decode(sample, prefix), alone.decode(sample, prefix), strict=True
        ):
            assert found["tokens"].tolist() == expected["tokens"].tolist()
            assert found["steps"] == expected["steps"]
            torch.testing.assert_close(
                found["positional_scores"], expected["positional_scores"], atol=1e-4, rtol=1e-4
            )
    assert alone.generator.memory.device_loop.board is not None
    # At most one of each batch, and none where the host waits.
    assert 0 < alone.task.counters.in_vain <= 2 and not plain.task.counters.in_vain
    for name in ("sentences", "iterations", "calls", "accepted", "emitted", "accepted_lengths"):
        assert getattr(alone.task.counters, name) == getattr(plain.task.counters, name), name
