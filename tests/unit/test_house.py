"""The size of what is read at once in the package: modules of at most 400 lines, functions of at most 60."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "fairseq_aggdec").rglob("*.py"))


def too_long(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if len(text.splitlines()) > 400:
        yield f"{path.name}: {len(text.splitlines())} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            # Without its decorators, signature and docstring: what a reader has to keep in mind.
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            if node.end_lineno - first.lineno + 1 > 60:
                yield f"{path.name}: {node.name} has {node.end_lineno - first.lineno + 1} lines"


def test_nothing_is_too_long() -> None:
    assert len(MODULES) > 100
    assert [fault for path in MODULES for fault in too_long(path)] == []
