"""What is written beside a number."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fairseq_aggdec.records import machine
from fairseq_aggdec.version import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_commands_can_be_given_again() -> None:
    line = machine.command("audit", [f"{ROOT}/data-bin", "--title", "two words", "--output", "x"])
    assert shlex.split(line) == [
        "aggdec",
        "audit",
        "data-bin",
        "--title",
        "two words",
        "--output",
        "x",
    ]
    assert machine.command("lattice_tables", []) == "aggdec lattice-tables"
    # The bytes of ü where the locale is not UTF-8, and a byte that is no text anywhere.
    assert machine.command("audit", ["\udcc3\udcbc\udcff"]) == "aggdec audit 'ü\\xff'"
    assert machine.command("scripts.mutants", ["-h"]) == "python -m scripts.mutants -h"


def test_the_description_says_what_was_used() -> None:
    found = machine.describe()
    assert found["cores"] and found["processor"]
    assert str(ROOT) not in str(found)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("sse2 avx2 avx512f amx_tile amx_bf16", "Xeon (AVX-512, AMX)"),
        ("avx2 avx512f", "Xeon (AVX-512)"),
        ("avx2", "Xeon (AVX2)"),
        ("sse2", "Xeon (no AVX2)"),
    ],
)
def test_instructions_are_named(flags: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda: {"model name": "Xeon", "flags": flags})
    monkeypatch.delenv("FAIRSEQ_AGGDEC_KERNELS", raising=False)
    assert machine.describe()["processor"] == shown
    monkeypatch.setenv("FAIRSEQ_AGGDEC_KERNELS", "plain")
    assert machine.describe()["processor"] == f"{shown[:-1]}, FAIRSEQ_AGGDEC_KERNELS=plain)"


def test_a_tree_with_changes_is_said_to_have_them() -> None:
    found = machine.describe()
    line = machine.sentence(found | {"commit": "0123abc+"})
    assert line.endswith("; commit 0123abc with changes that were not committed")
    assert machine.sentence(found | {"commit": "0123abc"}).endswith("; commit 0123abc")


def test_the_version_is_that_of_the_code_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout may have gone on since it was installed."""
    monkeypatch.setattr(machine, "version", lambda package: "0.0.1")
    machine._versions.cache_clear()
    found = machine._versions()
    machine._versions.cache_clear()
    assert found["fairseq_aggdec"] == __version__ != found["torch"] == "0.0.1"
