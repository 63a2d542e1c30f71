"""What is written beside a number."""

from __future__ import annotations

import shlex
from pathlib import Path

from fairseq_aggdec.records import machine

ROOT = Path(__file__).resolve().parents[2]


def test_commands_are_those_of_the_checkout() -> None:
    line = machine.command("audit", [f"{ROOT}/data-bin", "--title", "two words", "--output", "x"])
    assert shlex.split(line) == [
        *("python", "scripts/audit.py", "data-bin"),
        *("--title", "two words", "--output", "x"),
    ]
    assert (ROOT / "scripts" / "audit.py").exists()


def test_the_description_says_what_was_used() -> None:
    found = machine.describe()
    assert found["cores"] and found["processor"]
    assert str(ROOT) not in str(found)
