"""scripts/compare.py as a user calls it: several methods of one model, beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import CUT, PLUGIN, Trained
from tests.cli.test_tools import script


def run_compare(trained: Trained, output: Path, *more: str) -> None:
    arguments = [str(trained.data), *PLUGIN[:2], "--path", str(trained.checkpoint), "--cpu", *CUT]
    script("compare").main([*arguments, "--output", str(output), *more])


def test_table_plot_and_record(trained: Trained, tmp_path: Path) -> None:
    output = tmp_path / "methods"
    systems = ["--system", "stock=--beam 1", "--system", "wide=--beam 3"]
    systems += ["--system", "copying=--decoding iad --beam 1", "--limit", "20"]
    systems += ["--baselines", "stock", "--batch-sizes", "1", "4", "--threads", "1"]
    run_compare(trained, output, *systems)
    record = json.loads(output.with_suffix(".json").read_text())
    assert "nrefs:1" in record["sacrebleu"]
    lines = {(line["system"], line["batch_size"]): line for line in record["results"]}
    assert len(lines) == 6
    for batch_size in (1, 4):
        stock, copying = lines["stock", batch_size], lines["copying", batch_size]
        assert (copying["differ"], stock["differ"]) == (0, None)
        assert copying["bleu"] == stock["bleu"] > 50
        assert copying["steps"] < stock["steps"]
        assert stock["speedup"] == {"stock": 1.0}
        assert sum(copying["parts"].values()) == pytest.approx(1.0)
    assert "| copying |" in output.with_suffix(".md").read_text()
    assert Path(f"{output}-batch.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--system", "nothing"], "NAME=OPTIONS"),
        (["--system", "a=--beam 1", "--system", "a=--beam 2"], "same name"),
        (["--system", "a=--beam 1", "--baselines", "b"], "--baselines b"),
    ],
)
def test_refusals(trained: Trained, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        run_compare(trained, tmp_path / "never", *options)
