"""Every command that README and the pages print has only options that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fairseq import options
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceConfig
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_aggdec.__main__ import options as options_of
from fairseq_aggdec.bulk import command as translate_file
from fairseq_aggdec.cli.main import TOOLS
from fairseq_aggdec.cli.parsers import DECODING, parser_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FAIRSEQ = {
    "generate": lambda: options.get_generation_parser(),
    "interactive": lambda: options.get_interactive_generation_parser(),
    "train": lambda: options.get_training_parser(),
    "validate": lambda: options.get_validation_parser(),
}
OWN = {"--completion", "--debug", "--help", "--help-all", "--user-dir", "--version"}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command in a block of shell, comments left out."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("$(", "").replace(")", ""), comments=True)
            if words and re.match(
                r"aggdec\b|fairseq-(generate|interactive|train|validate)$", words[0]
            ):
                yield words


@cache
def of_fairseq(name: str) -> frozenset[str]:
    """All that a command of fairseq may be told: its own, and what task, model, loss and schedule add."""
    found = set(FAIRSEQ[name]()._option_string_actions)
    registries = [TASK_REGISTRY, ARCH_MODEL_REGISTRY, CRITERION_REGISTRY]
    parts = [part for registry in registries for part in registry.values()]
    parts += [*OPTIMIZER_REGISTRY.values(), *LR_SCHEDULER_REGISTRY.values()]
    wanted = [part for part in parts if part.__module__.startswith("fairseq_aggdec.")]
    wanted += [TASK_REGISTRY["translation"], ARCH_MODEL_REGISTRY["transformer"]]
    wanted += [CRITERION_REGISTRY["label_smoothed_cross_entropy"], OPTIMIZER_REGISTRY["adam"]]
    wanted += [LR_SCHEDULER_REGISTRY["inverse_sqrt"], LR_SCHEDULER_REGISTRY["polynomial_decay"]]
    for part in wanted:
        found |= {word for action in options_of(part) for word in action.option_strings}
    found |= {f"--{option.replace('_', '-')}" for option in vars(SentencepieceConfig())}
    return frozenset(found)


def of_tasks(words: list[str]) -> frozenset[str]:
    """What the task that a command names may be told, where it is one of fairseq."""
    tasks = [TASK_REGISTRY[name] for name in words if name in TASK_REGISTRY]
    return frozenset(word for task in tasks for a in options_of(task) for word in a.option_strings)


def known(words: list[str]) -> frozenset[str]:
    name = words[0].partition("-")[2]
    if words[0] == "aggdec-generate" and "--input-file" in words:
        return of_fairseq("generate") | set(translate_file.build_parser()._option_string_actions)
    if name:
        return of_fairseq(name) | of_tasks(words)
    if words[1].startswith("--"):
        return frozenset(OWN)
    assert words[1] in TOOLS, words
    own = frozenset(parser_of(words[1])._option_string_actions)
    return of_fairseq("generate") | own if words[1] in DECODING else own


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_options(page: Path) -> None:
    for words in commands(page):
        given = {word for word in words if word.startswith("--")}
        assert given <= known(words) | OWN, (words, given - known(words))


def test_there_are_commands() -> None:
    assert sum(1 for page in PAGES for _ in commands(page)) > 20
