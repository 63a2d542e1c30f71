"""Quicker commands in tests: fairseq composes its configuration with hydra, which takes most of a small command.

Most of that is the same in every command of a process: hydra copies its whole store of configurations, parses some 330
overrides, loads the groups (task, criterion, ...) and sets some 330 values, of which most have that value already.
Here the configuration of the groups is kept, and a command copies it and sets what it changes.
"""

from __future__ import annotations

import copy
import functools
import logging
import operator
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra.experimental
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, ValueNode

_parse = OverridesParser.parse_rule
_store = ConfigStore.store


@functools.lru_cache(maxsize=10_000)
def _parsed(text: str, rule: str) -> Any:
    return _parse(OverridesParser.create(), text, rule)


class Composed:
    """The configuration of some groups, and the overrides that are known to change nothing of it."""

    def __init__(self, groups: Sequence[str]) -> None:
        self.nodes = nodes_of(groups)
        with hydra.initialize_config_module("fairseq.config", version_base="1.1"):
            self.config = hydra.compose("config", overrides=list(groups))
        self.idle: set[str] = set()

    def with_overrides(self, overrides: Sequence[Any]) -> DictConfig:
        """A copy with the overrides, as hydra sets them."""
        times = Counter(override.key_or_group for override in overrides)
        config = copy.deepcopy(self.config)
        for override in overrides:
            text, once = override.input_line, times[override.key_or_group] == 1
            if once and text in self.idle:
                continue
            before = once and copy.copy(leaf(config, override.key_or_group))
            ConfigLoaderImpl._apply_overrides_to_config([override], config)
            if before and equal(before, leaf(config, override.key_or_group)):
                self.idle.add(text)
        return config


def leaf(config: Any, key: str) -> ValueNode | None:
    """The node of a value; None where there is none, or it holds others."""
    for part in key.split("."):
        config = config._get_node(part) if isinstance(config, DictConfig) else None
    return config if isinstance(config, ValueNode) else None


def equal(one: ValueNode, other: ValueNode | None) -> bool:
    parts = [(type(node), type(node._value()), node._value()) for node in (one, other) if node]
    return len(parts) == 2 and parts[0] == parts[1] and one._metadata == other._metadata  # type: ignore[union-attr]


def nodes_of(groups: Sequence[str]) -> list[Any]:
    """What the store has for groups such as ``task=translation``; the plugin puts others there without asking it."""
    repo = ConfigStore.instance().repo
    pairs = [one.partition("=") for one in groups]
    return [repo.get(group, {}).get(f"{name}.yaml") for group, _, name in pairs]


_kept: dict[tuple[str, ...], Composed] = {}


def compose(config_name: str, overrides: list[str], strict: bool | None = None) -> DictConfig:
    """``hydra.experimental.compose`` for fairseq: groups have no dot in their names, values have one."""
    assert config_name == "config"
    parsed = OverridesParser.create().parse_overrides(overrides)
    groups = tuple(one.input_line for one in parsed if "." not in one.key_or_group)
    nodes = nodes_of(groups)
    if groups not in _kept or any(map(operator.is_not, _kept[groups].nodes, nodes)):
        _kept[groups] = Composed(groups)
    config = _kept[groups].with_overrides([one for one in parsed if "." in one.key_or_group])
    OmegaConf.set_struct(config, strict)
    return config


@contextmanager
def _initialised(config_path: str) -> Iterator[None]:
    """In place of ``hydra.experimental.initialize``: :class:`Composed` does it when it has to."""
    yield


def _store_anew(self: ConfigStore, *given: Any, **named: Any) -> None:
    _kept.clear()
    _store(self, *given, **named)


def quicken() -> None:
    """From now on in this process. What commands do, and their messages, stay as they are.

    With hydra < 1.1, which facebook's own fairseq asks for, nothing is changed.
    """
    if not hasattr(hydra, "compose"):
        return
    ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    ConfigStore.store = _store_anew  # type: ignore[method-assign]
    OverridesParser.parse_rule = lambda self, text, rule: copy.copy(_parsed(text, rule))  # type: ignore[method-assign]
    for module in (hydra.experimental, sys.modules.get("fairseq.dataclass.utils")):
        vars(module or hydra.experimental).update(compose=compose, initialize=_initialised)


def prepare(task: str) -> None:
    """Composes what training and generation mostly have, so that a fork of this process knows most overrides.

    Quietly: a fork gives the warnings and the log lines of its own command.
    """
    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _prepare(task)
    logging.disable(logging.NOTSET)


def _prepare(task: str) -> None:
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    training = shlex.split(
        "--arch transformer --optimizer adam --lr-scheduler inverse_sqrt --criterion label_smoothed_cross_entropy"
    )
    for parser, arguments in (
        (options.get_generation_parser(default_task=task), ["data", "--path", "model"]),
        (options.get_training_parser(default_task=task), ["data", *training]),
    ):
        convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
