"""Plots of result files: from their data alone, and of today's looks where they are committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.report import redraw

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
KINDS = {
    "iad-ua_gec-cpu2": {"batch", "distribution", "edits"},
    "gad-small-modules": {"distribution"},  # one batch size: no plot of it
}


def record(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return read


@pytest.mark.parametrize("name", KINDS)
def test_the_plots_of_a_result(name: str, tmp_path: Path) -> None:
    """All that belong to it, and no others."""
    drawn = redraw.draw(tmp_path / name, record(name))
    assert {path.name for path in drawn} == {f"{name}-{kind}.svg" for kind in KINDS[name]}
    assert all(path.exists() for path in drawn)


def test_every_committed_plot_is_in_todays_style() -> None:
    plots = sorted(RESULTS.glob("*.svg"))
    assert plots
    for path in plots:
        text = path.read_text(encoding="utf-8")
        assert 'role="img"' in text and "prefers-color-scheme" in text, path
        assert "<text" in text and "commit" in text, path


def test_plots_name_model_data_and_machine() -> None:
    read = record("iad-ua_gec-cpu2")
    label = redraw.label(read, "batch size", sentences=160, threads=1)
    assert label.title == f"{read['title']}: batch size"
    assert label.context == (
        "model ua_gec/checkpoint.pt; test set of ua_gec/data; 160 sentences; 1 thread"
    )
    machine = read["machine"]
    assert machine["processor"] in label.machine and machine["commit"] in label.machine
