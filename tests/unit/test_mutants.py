"""The mutants still fit the code: what each replaces stands there once, and its tests exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutants = tool()


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.fault)
def test_a_mutant_fits(mutant: Any, tmp_path: Path) -> None:
    path = tmp_path / "fairseq_aggdec" / mutant.file
    path.parent.mkdir(parents=True)
    before = (ROOT / "fairseq_aggdec" / mutant.file).read_text(encoding="utf-8")
    path.write_text(before, encoding="utf-8")
    mutants.put_in(mutant, tmp_path)
    after = path.read_text(encoding="utf-8")
    assert after != before
    if mutant.file.endswith(".py"):
        compile(after, mutant.file, "exec")
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)


def test_the_first_failure_is_named(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    marked = "import pytest\n\n\n@pytest.mark.parametrize('of', [1], ids=['two words'])\n"
    test.write_text(f"{marked}def test_a(of):\n    assert of\n\n\ndef test_b():\n    assert 0\n")
    assert mutants.first_failure(tmp_path, ["test_it.py"]) == "test_it.py::test_b"
    test.write_text(f"{marked}def test_a(of):\n    assert of > 1\n")
    assert mutants.first_failure(tmp_path, ["test_it.py"]) == "test_it.py::test_a[two words]"
    test.write_text("def test_a():\n    assert True\n")
    assert mutants.first_failure(tmp_path, ["test_it.py"]) is None
