"""``python -m fairseq_aggdec`` shows what fairseq's ``--help`` does not: options of tasks, models and criterions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

from fairseq_aggdec.decoding.config import DecodingConfig


def options(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairseq_aggdec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_option_is_there_with_its_default() -> None:
    found = options()
    assert found.returncode == 0, found.stderr
    for field in fields(DecodingConfig):
        if "help" in field.metadata:
            assert f"  --{field.name.replace('_', '-')} " in found.stdout
    words = " ".join(found.stdout.split())
    assert (
        "--tolerance TOLERANCE --acceptance top-beta: log-probability behind the best, in nats (default: 1.0)"
        in words
    )
    assert "tokens drafted at once, k (default: 10)" in words  # an option of two architectures
    assert "tokens predicted at once (default: 8)" in words
    assert found.stdout.count("  --drafter-path ") == 1  # an option of two tasks
    for heading in (
        "--task translation_aggdec:",
        "--arch lattice_transformer:",
        "--criterion glancing_loss:",
    ):
        assert heading in found.stdout
    assert "--encoder-layers" not in found.stdout  # stock options are fairseq's to show


def test_arguments_are_refused() -> None:
    found = options("--decoding", "iad")
    assert found.returncode == 1
    assert "takes no arguments" in found.stderr
