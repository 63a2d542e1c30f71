"""The script that draws where drafts begin to pay, on two drafters that were trained for a few updates."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.recipes.gad import crossing
from tests.cli.commands import Trained
from tests.cli.test_gad import train_drafter


def test_two_drafters(trained: Trained, tmp_path: Path) -> None:
    train_drafter(trained, tmp_path, 4)
    drafter, output = str(tmp_path / "checkpoint_last.pt"), tmp_path / "crossing"
    crossing.main(
        [
            *[str(trained.data), "--path", str(trained.checkpoint), "--cpu"],
            *["--drafters", drafter, drafter, "--trees", "1", "3", "--bins", "2"],
            *["--limit", "4", "--repeats", "1", "--output", str(output)],
        ]
    )
    found = json.loads(output.with_suffix(".json").read_text())
    assert found["results"].keys() == {"fp32", "8 bits"}
    for panel in found["results"].values():
        assert [point["tree"] for point in panel["points"]] == [1, 1, 3, 3]
        assert all(point["gained"] >= 1 and point["measured"] > 0 for point in panel["points"])
    page = output.with_suffix(".md").read_text()
    assert page.count("| 3 |") == 4
    assert "tokens an iteration" in output.with_suffix(".svg").read_text()
