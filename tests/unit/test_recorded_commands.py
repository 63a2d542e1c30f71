"""Result files: few, all linked, with commands of today, in which what is called fairseq is decoded by fairseq."""

from __future__ import annotations

import importlib.util
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
from fairseq_aggdec.cli.main import TOOLS, module_of
from fairseq_aggdec.cli.parsers import parser_of
from fairseq_aggdec.methods.options.reading import read_settings
from tests.unit.test_printed_commands import of_fairseq

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
MOST = 70  # files; merge what tells one story
WRITTEN = [file for file in sorted(RESULTS.rglob("*")) if file.suffix in (".md", ".json")]


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
    tool = module.rpartition(".")[2].replace("_", "-")
    if module == module_of(tool) and tool in TOOLS:
        return frozenset(parser_of(tool)._option_string_actions) | of_fairseq("generate")
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


def is_there(words: list[str]) -> bool:
    """Whether the tool of a command has the name that it has today."""
    return importlib.util.find_spec(module(words)) is not None


IDS = [str(file.relative_to(RESULTS)) for file in WRITTEN]


@pytest.mark.parametrize("file", WRITTEN, ids=IDS)
def test_what_is_called_fairseq_is_stock(file: Path) -> None:
    for words in commands(file):
        for entry, rest in systems(words):
            command_line.check_stock(entry, rest)


@pytest.mark.parametrize("file", WRITTEN, ids=IDS)
def test_every_option_is_there(file: Path) -> None:
    for words in commands(file):
        assert is_there(words), words[:3]
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


def test_files_are_few_and_linked() -> None:
    """From README, CONTRIBUTING, a page, or the template of one; what only a test reads is linked, too."""
    found = {file.name for file in RESULTS.iterdir()}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    linked = set(re.findall(r"\]\((?:docs/)?results/([\w.-]+)", text))
    assert found - linked == set() == linked - found
    assert len(found) <= MOST


def test_there_are_commands() -> None:
    assert sum(1 for file in WRITTEN for _ in commands(file)) > 40


def test_a_system_that_is_no_stock_fairseq_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`aggdec bench data --path a.pt --system 'fairseq beam 1=--decoding greedy'`\n")
    ((entry, rest),) = [one for words in commands(page) for one in systems(words)]
    with pytest.raises(SystemExit, match="decoded by our --decoding greedy"):
        command_line.check_stock(entry, rest)
