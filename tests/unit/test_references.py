"""Docstrings and comments name files, options and Python objects that are there; no docstring begins vaguely."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_names_in_pages import known_options, there

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fairseq_aggdec"
# First words that leave the reader to find out what is spoken of.
VAGUE = {
    *("And", "Are", "As", "By", "From", "How", "In", "Is", "Of", "So", "That", "Those", "What"),
    *("Where", "Whether", "Which", "Whose"),
}
Text = tuple[str, str]  # where it stands; what it says


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def docstrings() -> tuple[Text, ...]:
    """Those of all modules, classes and functions of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                name = getattr(node, "name", "")
                found.append((f"{path.relative_to(PACKAGE)}:{name}", text))
    return tuple(found)


def comments() -> Iterator[Text]:
    """Comments of the package in Python, C++ and CUDA."""
    for ending, mark in ((".py", r"#"), (".h", r"//"), (".cpp", r"//"), (".cu", r"//")):
        for path in sorted(PACKAGE.rglob(f"*{ending}")):
            text = path.read_text(encoding="utf-8")
            for line in re.findall(rf"(?:^|\s){mark}+ (.*)", text):
                yield str(path.relative_to(PACKAGE)), line


@cache
def names() -> frozenset[str]:
    """Functions, classes, arguments and attributes that the package defines or uses."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            for field in ("name", "attr", "id", "arg"):
                if isinstance(value := getattr(node, field, None), str):
                    found.add(value)
    return frozenset(found)


@cache
def files() -> tuple[str, ...]:
    folders = ("fairseq_aggdec", "scripts", "tests", "docs", "configs", "checkpoints")
    found = [*ROOT.glob("*.*"), *(one for name in folders for one in (ROOT / name).rglob("*.*"))]
    return tuple(f"/{path.relative_to(ROOT)}" for path in found)


def missing_files(text: str) -> list[str]:
    """Names of files of this repository that no file has, or none below such folders."""
    named = re.findall(
        r"(?<![\w./{}*<-])((?:[a-z_][\w-]*/)*[a-z_][\w-]*\.(?:py|h|cpp|cu|md|sh))\b", text
    )
    return [one for one in named if not any(path.endswith(f"/{one}") for path in files())]


def missing_names(text: str) -> list[str]:
    """Targets of ``:func:`` and its kin that are not there."""
    lost = []
    for target in re.findall(r":(?:func|meth|class|mod|data|attr|exc):`~?([\w.]+)`", text):
        if target.startswith("fairseq_aggdec."):
            if not there(target):
                lost.append(target)
        elif target.partition(".")[0] not in ("torch", "fairseq", "numpy", "argparse"):
            lost += [part for part in target.split(".") if part not in names()]
    return lost


def missing_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) - known_options()


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    assert [place for place, text in docstrings() if text.split()[0] in VAGUE] == []


@pytest.mark.parametrize("missing", [missing_files, missing_names, missing_options])
def test_what_is_named_is_there(missing: object) -> None:
    assert callable(missing)
    texts = [*docstrings(), *comments()]
    assert [(place, lost) for place, text in texts if (lost := missing(text))] == []


def test_what_is_not_there_is_seen() -> None:
    assert missing_files("as in search/beam/nothing.py and nothing.h") == [
        "search/beam/nothing.py",
        "nothing.h",
    ]
    assert missing_files("see search/rules.py, loop.h") == []
    assert missing_names(":func:`no_such_thing`, :class:`~fairseq_aggdec.Nothing`") == [
        "no_such_thing",
        "fairseq_aggdec.Nothing",
    ]
    assert missing_options("--no-such-option --decoding") == {"--no-such-option"}
