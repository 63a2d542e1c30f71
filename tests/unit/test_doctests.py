"""The examples in the docstrings of the package are run as they are printed."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import fairseq_aggdec

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in Path(fairseq_aggdec.__path__[0]).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def test_there_are_examples() -> None:
    assert "fairseq_aggdec.api.loading" in MODULES


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # they name the shipped checkpoint
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
