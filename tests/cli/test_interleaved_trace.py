"""What ``fairseq-generate --decoding interleaved`` prints of the steps of a sentence."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.commands import Trained
from tests.cli.test_interleaved import train_writer


def test_a_line_per_step_in_reading_order(trained: Trained, tmp_path: Path) -> None:
    train_writer(trained, tmp_path, "--directions", "2", "--no-epoch-checkpoints", updates=1)
    options = ["--beam", "2", "--min-len", "4", "--print-step", "--retain-iter-history"]
    found = trained.generate("interleaved", *options, path=tmp_path / "checkpoint_last.pt")
    steps, texts = found.lines("I"), found.texts("H")
    traces: dict[str, list[list[str]]] = {}
    for name, line in re.findall(r"^E-(\d+)_\d+\t(.*)$", found.stdout, re.MULTILINE):
        traces.setdefault(name, []).append(line.split())
    assert set(traces) == set(texts)
    for name, trace in traces.items():
        words = texts[name].split()
        assert len(trace) == len(words) // 2 + 1 <= int(steps[name])
        # From both ends; </s>, which has no word, comes last.
        assert trace[0] == [words[0], *["<pad>"] * (len(words) - 2), words[-1], "<pad>"]
        assert trace[-1] == words
