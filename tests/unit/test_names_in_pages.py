"""Every command, option, Python name and file that README and the pages name is there, in text as in blocks of code.

``test_printed_commands.py`` looks closer at whole commands.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fairseq import options as fairseq_options
from fairseq.tasks import TASK_REGISTRY

from fairseq_aggdec.__main__ import options as options_of
from fairseq_aggdec.bulk import command as translate_file
from fairseq_aggdec.cli.main import TOOLS
from fairseq_aggdec.cli.parsers import parser_of
from tests.unit.test_printed_commands import FAIRSEQ, OWN, PAGES, ROOT, of_fairseq

TEXTS = {
    page.name: re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for page in PAGES
}
# Options of programs that are not ours.
FOREIGN = {
    "docker": {"--health-cmd", "--health-start-period", "--user"},
    "pip": {"--extra-index-url"},
    "setup.py": {"--inplace"},
    "Slurm": {"--array", "--gpus", "--gpus-per-task", "--ntasks", "--requeue", "--wrap"},
    "torchrun": {"--no-python", "--nproc-per-node"},
}
SCRIPTS = (
    "scripts/**/*.py",
    "scripts/**/*.sh",
    "tests/fuzz/*.py",
    "tests/conftest.py",
    "fairseq_aggdec/lattice/**/*.py",
)


@cache
def known_options() -> frozenset[str]:
    """Those of all commands, of fairseq's tasks, of scripts, and of programs that are not ours."""
    found = set(OWN).union(*FOREIGN.values(), *map(of_fairseq, FAIRSEQ))
    found |= set(fairseq_options.get_preprocessing_parser()._option_string_actions)
    found |= set(translate_file.build_parser()._option_string_actions)
    for name in TOOLS:
        found |= set(parser_of(name)._option_string_actions)
    for task in TASK_REGISTRY.values():
        found |= {word for action in options_of(task) for word in action.option_strings}
    paths = [path for pattern in SCRIPTS for path in ROOT.glob(pattern)]
    return frozenset(found.union(*map(added, paths)))


def added(path: Path) -> Iterator[str]:
    """The options that a script declares, for argparse or as a branch of the shell's ``case``."""
    text = path.read_text(encoding="utf-8")
    pattern = r"[^\n]*(--[a-z][a-z-]+)[^\n]*\)" if path.suffix == ".sh" else r'"(--[a-z][a-z-]+)"'
    return (found[1] for found in re.finditer(pattern, text))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_options(name: str) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", TEXTS[name]))
    assert named - known_options() == set()


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_commands(name: str) -> None:
    tools = set(re.findall(r"(?<![\w/.-])aggdec ([a-z][a-z-]+)", TEXTS[name]))
    programs = set(re.findall(r"(?<![\w/.])aggdec-([a-z-]+)", TEXTS[name]))
    assert (tools - set(TOOLS), programs - set(FAIRSEQ)) == (set(), set())


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_python_names(name: str) -> None:
    named = set(re.findall(r"(?<![\w/.])fairseq_aggdec(?:\.\w+)+", TEXTS[name]))
    assert [one for one in sorted(named) if not there(one)] == []


def there(name: str) -> bool:
    """Whether a module, or a thing in one, has this name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_files(name: str) -> None:
    """Those of the repository; capitals stand for a name that the reader chooses."""
    folders = "fairseq_aggdec|scripts|tests|configs|checkpoints|docs"
    named = set(
        re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*\w)(?![\w*{{-]|\.{{)", TEXTS[name])
    )
    chosen = {one for one in named if re.search(r"\b[A-Z]+\b|_NAME", one)}
    assert [one for one in sorted(named - chosen) if not (ROOT / one).exists()] == []


def test_what_is_not_there_is_seen() -> None:
    assert not there("fairseq_aggdec.api.Nothing") and not there("fairseq_aggdec.nothing.Call")
    assert there("fairseq_aggdec.api.calls.Call.rows")
    assert "--no-such-option" not in known_options() and "--wheels" in known_options()
    assert sum(len(re.findall(r"`--", text)) for text in TEXTS.values()) > 200
