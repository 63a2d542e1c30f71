"""``scripts/redraw.py``: plots and tables from result files alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fairseq_aggdec.report import redraw
from scripts import redraw as command

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# One of each kind.
KINDS = (
    "iad-ua_gec-cpu2",
    "gad-small-modules",
    "gad-replay_base",
    "blockwise-small",
    "interleaved-small-figures",
    "lattice-figures-multi30k",
    "lattice-recall-multi30k",
    "iad-memory-cpu2",
)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in KINDS:
        shutil.copy(RESULTS / f"{name}.json", tmp_path)
    return tmp_path


def test_the_plots_of_every_kind_of_result(copied: Path) -> None:
    """And no others."""
    command.main([str(copied / f"{name}.json") for name in KINDS])
    drawn = {path.name for path in copied.glob("*.svg")}
    assert drawn == {
        "iad-ua_gec-cpu2-batch.svg",
        "iad-ua_gec-cpu2-distribution.svg",
        "iad-ua_gec-cpu2-edits.svg",
        "gad-small-modules-distribution.svg",  # one batch size: no plot of it
        "gad-replay_base-distribution.svg",  # and random words: no edits
        "blockwise-small-speedup.svg",
        "interleaved-small-figures-batch.svg",
        "interleaved-small-figures-length.svg",
        "interleaved-small-figures-words.svg",
        "lattice-figures-multi30k-time.svg",
        "lattice-figures-multi30k-ranks.svg",
        "lattice-recall-multi30k.svg",
    }
    assert all((RESULTS / name).exists() for name in drawn)


def test_every_committed_plot_is_in_todays_style() -> None:
    plots = sorted(RESULTS.glob("*.svg"))
    assert plots
    for path in plots:
        text = path.read_text()
        assert 'role="img"' in text and "prefers-color-scheme" in text, path
        assert "<text" in text and "commit" in text, path


def test_the_tables_are_those_of_the_run(copied: Path) -> None:
    """All numbers are where they were; what somebody wrote below stays."""
    kept = (RESULTS / "iad-ua_gec-cpu2.md").read_text()
    page = copied / "iad-ua_gec-cpu2.md"
    page.write_text(kept + "\nA remark.\n")
    command.main([str(page.with_suffix(".json"))])
    assert page.read_text() == kept + "\nA remark.\n"
    modules = copied / "gad-small-modules.md"
    command.main([str(modules.with_suffix(".json"))])
    assert modules.read_text() == (RESULTS / "gad-small-modules.md").read_text()


def test_tables_can_be_left_alone(copied: Path) -> None:
    command.main([str(copied / "gad-replay_base.json"), "--no-tables"])
    assert [path.name for path in copied.glob("gad*.*g")] == ["gad-replay_base-distribution.svg"]
    assert not list(copied.glob("*.md"))


def test_plots_name_model_data_and_machine() -> None:
    record = json.loads((RESULTS / "iad-ua_gec-cpu2.json").read_text())
    label = redraw.label(record, "batch size", sentences=160, threads=1)
    assert label.title == f"{record['title']}: batch size"
    assert label.context == (
        "model ua_gec/checkpoint.pt; test set of ua_gec/data; 160 sentences; 1 thread"
    )
    machine = record["machine"]
    assert machine["processor"] in label.machine and machine["commit"] in label.machine


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.md", "", "name the .json file"),
        ("none.json", "{", "is not JSON"),
        ("none.json", "[]", "is no result"),
        ("none.json", '{"command": "a b", "machine": {}, "spans": [{}]}', "lacks what its plots"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        command.main([str(tmp_path / name)])
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: .*none.json: No such file"):
        command.main([str(tmp_path / "none.json")])
