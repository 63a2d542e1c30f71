"""Up to 256 sentences at once: the device decodes them alone, and what it writes is what stock fairseq writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.graphs.capture import made
from fairseq_aggdec.engine.graphs.window_graphs import ROWS, SPARE, WindowGraphs, grid_rows
from fairseq_aggdec.search.greedy.on_device import DeviceLoop
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES
from tests.strict.test_methods import SIZES, assert_equal

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("greedy", 65),
        ("greedy", 256),
        ("iad, unique", 100),
        ("gad", 130),
        ("blockwise, dense", 200),
        ("nar", 70),
        ("beam 3", 40),
    ],
)
def test_more_than_64_rows(
    name: str, rows: int, gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(1, rows)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
    launch, launched = DeviceLoop._launch, []

    def noted(self: DeviceLoop, sentences: Any, size: int, end: int) -> None:
        launched.append(grid_rows(len(sentences)))
        launch(self, sentences, size, end)

    monkeypatch.setattr(DeviceLoop, "_launch", noted)
    before = made.graphs
    for _ in range(2):
        assert_equal(ready.decode(sample, None), wanted, gpu)
    assert made.graphs > before
    if not name.startswith("beam"):
        assert launched[0] == grid_rows(rows)


def test_sizes_are_close_to_what_is_asked_for_where_arithmetic_counts() -> None:
    assert all(grid_rows(rows) <= 1.5 * rows for rows in range(65, ROWS[-1] + 1))


@torch.inference_mode()
def test_no_memory_is_kept_for_many_long_sentences_that_never_came(gpu: torch.device) -> None:
    graphs = WindowGraphs(lambda *_: torch.empty(0), gpu)
    for rows, length in ((256, 64), (1, 2048), (256, 64)):
        graphs.start([torch.zeros(rows, length, 4, device=gpu)], None, rows, length)
        assert graphs.room is not None
        assert graphs.room.size.places <= SPARE * 256 * 2 * 64
