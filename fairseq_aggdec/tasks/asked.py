"""The plugin's options of one generator: from a task's configuration, a namespace, or a call of the hub."""

from __future__ import annotations

import enum
from argparse import Namespace
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fairseq_aggdec.methods.config import DecodingConfig

OPTIONS = [field for field in fields(DecodingConfig) if field.name != "_name"]
NAMES = [option.name for option in OPTIONS]
# What methods read of the task's own options.
OF_THE_TASK = ("data", "source_lang", "target_lang", "eval_bleu")


def asked_options(
    settings: Any, args: Any, hidden: Collection[str] = (), given: Mapping[str, Any] | None = None
) -> Any:
    """The plugin's options, with those of :data:`OF_THE_TASK`: from the call, else from the task, else the defaults.

    Args:
        settings: of the task, a configuration or a namespace; any option may be missing, as in one that fairseq's hub
            has made of a checkpoint.
        args: fairseq's generation options; the hub adds what it is called with.
        hidden: names that mean something else in the task.
        given: by ``adopt()``; these count more than the task's, and less than the call's.

    Raises:
        ValueError: a value that an option does not have.
    """
    of_call = {**(given or {}), **_found(args, _known(args, NAMES))}
    names = [name for name in _known(settings, NAMES) if name not in hidden]
    if not of_call and len(names) == len(NAMES):
        return settings
    of_task = _found(settings, names)
    found = {option.name: option.default for option in OPTIONS} | {"bf16": False}
    found |= _found(settings, _known(settings, OF_THE_TASK)) | of_task | of_call
    for option in OPTIONS:
        kind: Any = option.type
        if isinstance(kind, enum.EnumMeta):
            choices = list(map(str, kind))
            if str(found[option.name]) not in choices:
                name = "--" + option.name.replace("_", "-")
                raise ValueError(f"{name} {found[option.name]}: there are {', '.join(choices)}")
    return Namespace(**found)


def _known(holder: Any, names: Collection[str]) -> list[str]:
    """Those of the names that something holds; a configuration takes long to say that it does not hold one."""
    if isinstance(holder, DictConfig):
        keys = holder.keys()
        return [name for name in names if name in keys]
    return [name for name in names if hasattr(holder, name)]


def _found(holder: Any, names: Collection[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        try:
            found[name] = getattr(holder, name)
        except OmegaConfBaseException:  # it stands in a section that is not there
            found[name] = False
    return found
