"""Commands in result files: what they call fairseq is decoded by fairseq, and their options are there today.

A file names the version and commit that made it; commands of another version are that version's and are not checked.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fairseq import options

from fairseq_aggdec.api.session import generation_parser
from fairseq_aggdec.bench import command_line
from fairseq_aggdec.cli import bench
from fairseq_aggdec.cli.main import module_of
from fairseq_aggdec.methods.options.reading import read_settings
from fairseq_aggdec.version import __version__
from tests.unit.test_printed_commands import of_fairseq

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
WRITTEN = [file for file in sorted(RESULTS.rglob("*")) if file.suffix in (".md", ".json")]
MADE_BY = re.compile(r"fairseq_aggdec\"?:? \"?(\d+\.\d+\.\d+)")


def of_today(text: str) -> bool:
    """Whether a file was made by this version; one that names no version was not made by a command."""
    return set(MADE_BY.findall(text)) == {__version__}


FILES = [file for file in WRITTEN if of_today(file.read_text(encoding="utf-8"))]


def recorded(value: object) -> Iterator[str]:
    """What a JSON file calls a command."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "command" and isinstance(inner, str):
                yield inner
            yield from recorded(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from recorded(inner)


def commands(file: Path) -> Iterator[list[str]]:
    """Words of the commands of a result file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        found = recorded(json.loads(text))
        lines = [line for line in found if line.startswith(("python ", "aggdec "))]
    else:
        lines = re.findall(r"^`((?:python|aggdec) [^`]*)`", text, re.MULTILINE)
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            lines += re.findall(r"^(?:python|aggdec) .*", block.replace("\\\n", " "), re.MULTILINE)
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "python" and words[1] != "-m":
            words = ["python", "-m", words[1].removesuffix(".py").replace("/", "."), *words[2:]]
        yield words


@cache
def of_module(module: str) -> frozenset[str] | None:
    """Options of a tool; None: it has no parser to ask."""
    found = importlib.import_module(module)
    if not hasattr(found, "build_parser"):
        return None
    own = frozenset(found.build_parser()._option_string_actions)
    return own | of_fairseq("generate")


@cache
def check_values(chosen: tuple[str, ...]) -> None:
    """Each option takes what it is given."""
    read_settings(options.parse_args_and_arch(generation_parser(None), input_args=list(chosen)))


def module(words: list[str]) -> str:
    return module_of(words[1]) if words[0] == "aggdec" else words[2]


def systems(words: list[str]) -> Iterator[tuple[command_line.Entry, list[str]]]:
    """Those of a command of ``aggdec bench`` that are named by options, and the options of all."""
    if words[:2] == ["aggdec", "bench"]:
        args, rest = bench.own_parser().parse_known_args(words[2:])
        for entry in command_line.entries(args, rest)[0]:
            if entry.system is None:
                yield entry, rest


IDS = [str(file.relative_to(RESULTS)) for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_what_is_called_fairseq_is_stock(file: Path) -> None:
    for words in commands(file):
        for entry, rest in systems(words):
            command_line.check_stock(entry, rest)


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_every_option_is_there(file: Path) -> None:
    for words in commands(file):
        known = of_module(module(words))
        given = {
            word.partition("=")[0] for word in words[2:] if re.match(r"--[a-z][\w-]*(=|$)", word)
        }
        assert known is None or given <= known, (words[:3], given - known)
        for entry, rest in systems(words):
            chosen = [*rest, *entry.options]
            check_values(tuple(chosen))


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.name)
def test_a_tree_with_changes_is_said_to_have_them(file: Path) -> None:
    """On a page in words; the data have a ``+``."""
    if file.suffix == ".md":
        assert not re.search(r"commit [0-9a-f]{7,}\+", file.read_text(encoding="utf-8"))


def test_commands_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`aggdec bench data --path a.pt --system 'a=--decoding stock'`\n")
    (words,) = commands(page)
    assert words[:3] == ["aggdec", "bench", "data"]
    assert [entry.name for entry, _ in systems(words)] == ["a"]
    assert of_today(f"torch 2.13.0, fairseq_aggdec {__version__}") and not of_today("")
