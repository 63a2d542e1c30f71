"""Recorded drafts, replayed by the loop on the device: the model's own output, with the recorded iterations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.search.greedy.on_device import DeviceLoop
from scripts.recipes.gad.replay import ReplayDrafter
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES, Case

NAMES = ["iad, unique", "gad, next, chain, causal", "blockwise, dense"]
BY_NAME = {case.name: case for case in CASES}
DRAFTED, STANDING, TOKENS = 4, 2, 9


def prepared(name: str, folder: Path, device: torch.device) -> tuple[Any, dict[str, Any]]:
    """The method of a case, made to write ``TOKENS`` tokens, and a batch."""
    lengths = {"min_len": TOKENS, "max_len_a": 0, "max_len_b": TOKENS}
    method = BY_NAME[name]
    fixed = {"draft_tokens": str(DRAFTED)} if method.decoding == "iad" else {}
    case = Case(name, method.decoding, method.arch, method.model, method.drafter, fixed, lengths)
    models, drafter = device_cases.random_models(case, {"encoder_layers": 1, "decoder_layers": 1})
    ready = device_cases.prepared(case, models, drafter, folder, device)
    return ready, device_cases.batch(1, 3)


def recorded(first: int) -> Record:
    """Sentences that gain three tokens in every iteration, after one that gains ``first``."""
    left, gains = TOKENS + 1 - first, [first]
    while left:
        gains.append(min(STANDING + 1, left))
        left -= gains[-1]
    drafts = [0 if place == 0 and first == 1 else DRAFTED for place in range(len(gains))]
    return Record(
        0,
        [],
        [
            Iteration([0] * drafted, [], gained - 1, [0] * gained)
            for drafted, gained in zip(drafts, gains, strict=True)
        ],
    )


def tokens(found: Sequence[Any]) -> list[list[int]]:
    return [ranked[0]["tokens"].tolist() for ranked in found]


@pytest.mark.parametrize("name", NAMES)
def test_the_device_replays(
    name: str, gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, sample = prepared(name, tmp_path, gpu)
    expected = tokens(ready.decode(sample, None))
    records = {row: recorded(1 if name.startswith("blockwise") else 2) for row in range(3)}
    replay = ReplayDrafter(records, dict(enumerate(expected)), (8, 9), ready.generator.drafter)
    ready.generator.drafter = replay
    loops = []
    decode = DeviceLoop.decode
    monkeypatch.setattr(
        DeviceLoop, "decode", lambda self, *args: (loops.append(self), decode(self, *args))[1]
    )
    counters = ready.task.counters
    for _ in range(3):  # as it is, captured, replayed
        before = counters.iterations, counters.accepted
        assert tokens(ready.decode(sample, None)) == expected
        assert counters.iterations - before[0] == sum(len(r.iterations) for r in records.values())
        assert counters.accepted - before[1] == sum(
            iteration.accepted for record in records.values() for iteration in record.iterations
        )
    assert len(loops) == 3
