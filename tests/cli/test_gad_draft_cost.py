"""The script that shows what a draft costs by its parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_aggdec.budget.price import parse_price
from scripts.recipes.gad import draft_cost
from tests.cli.commands import Trained
from tests.cli.test_gad import train_drafter


def test_the_parts_of_a_draft_are_its_whole(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slots = ["--slot-predicts", "next", "--prefix-attention", "causal", "--slot-chain"]
    train_drafter(trained, tmp_path, 2, *slots)
    drafter, output = str(tmp_path / "checkpoint_last.pt"), tmp_path / "cost"
    draft_cost.main(
        [
            *[str(trained.data), "--path", str(trained.checkpoint), "--drafter-path", drafter],
            *["--cpu", "--limit", "3", "--repeats", "2", "--output", str(output)],
        ]
    )
    assert capsys.readouterr().out.count("| whole draft |") == 2
    found = json.loads(output.with_suffix(".json").read_text())["results"]
    for of in found.values():
        price = parse_price(of["price"])
        assert price is not None and of["source"] > 0
        assert of["step"] == pytest.approx(1e3 * price.call(1), rel=1e-3)
        assert [cost["slots"] for cost in of["costs"]] == [1, 2, 4]  # of a block of 4
        for cost in of["costs"]:
            whole = 1e3 * (price.draft + cost["slots"] * price.slot)
            assert cost["whole"] == pytest.approx(whole, rel=1e-2)
            assert cost["vocabulary"] > 0
            layer = 32 * (6 * 32 + 2 * 64)
            assert cost["of_layers"] == pytest.approx(cost["slots"] * layer / 1e6)
