"""Quicker commands in tests: fairseq composes its configuration with hydra, which takes most of a small command.

Two parts of that repeat. hydra copies its whole store of configurations each time, although whatever is loaded from the
store is a copy already. And it parses some 330 overrides, nearly all of which it has parsed before in this process.
"""

from __future__ import annotations

import copy
import functools
import logging
import warnings
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

_parse = OverridesParser.parse_rule


@functools.lru_cache(maxsize=10_000)
def _parsed(text: str, rule: str) -> Any:
    return _parse(OverridesParser.create(), text, rule)


def quicken() -> None:
    """From now on in this process. What commands do, and their messages, stay as they are."""
    ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    OverridesParser.parse_rule = lambda self, text, rule: copy.copy(_parsed(text, rule))  # type: ignore[method-assign]


def compose() -> None:
    """Composes what training and generation have by default, so that a fork of this process knows most overrides.

    Quietly: a fork gives the warnings and the log lines of its own command.
    """
    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _compose()
    logging.disable(logging.NOTSET)


def _compose() -> None:
    from fairseq import options  # loads PyTorch
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    for parser, arguments in (
        (options.get_generation_parser(), ["data", "--path", "model"]),
        (options.get_training_parser(), ["data", "--arch", "transformer"]),
    ):
        convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
