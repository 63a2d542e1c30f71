"""The size of what is read at once: files of at most 400 lines, functions of the package of at most 60."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "fairseq_aggdec").rglob("*.py"))


def too_long(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            # Without its decorators, signature and docstring: what a reader has to keep in mind.
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            if node.end_lineno - first.lineno + 1 > 60:
                yield f"{path.name}: {node.name} has {node.end_lineno - first.lineno + 1} lines"


def test_no_function_is_too_long() -> None:
    assert len(MODULES) > 100
    assert [fault for path in MODULES for fault in too_long(path)] == []


@pytest.mark.parametrize("folder", ["fairseq_aggdec", "scripts", "tests", ".ci"])
def test_no_file_is_too_long(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh", "")]
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in files if path.is_file()
    }
    assert lines
    assert [f"{path}: {number} lines" for path, number in lines.items() if number > 400] == []
