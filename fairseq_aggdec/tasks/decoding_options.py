"""The plugin's options for one generator, from the call, ``adopt()``, the task's configuration, or the defaults."""

import enum
from argparse import Namespace
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fairseq_aggdec.methods.config import DecodingConfig

OPTIONS = [field for field in fields(DecodingConfig) if field.name != "_name"]
NAMES = [option.name for option in OPTIONS]
# What methods read of the task's own options.
OF_THE_TASK = ("data", "source_lang", "target_lang", "eval_bleu")


def resolve_options(
    settings: Any,
    args: Any,
    hidden: Collection[str] = (),
    from_python: Mapping[str, Any] | None = None,
) -> Any:
    """The plugin's options, with those of :data:`OF_THE_TASK`: from the call, else from the task, else the defaults.

    Args:
        settings: of the task, a configuration or a namespace; any option may be missing, as in one of fairseq's hub.
        args: fairseq's generation options; the hub adds what it is called with.
        hidden: names that mean something else in the task.
        from_python: by ``adopt()``; these count more than the task's, and less than the call's.
    """
    values = {option.name: option.default for option in OPTIONS} | {"bf16": False}
    values |= _values(settings, OF_THE_TASK)
    values |= _values(settings, [name for name in NAMES if name not in hidden])
    of_call = {**(from_python or {}), **_values(args, NAMES)}
    values |= of_call
    for option in OPTIONS:
        kind: Any = option.type
        if isinstance(kind, enum.EnumMeta):
            choices = list(map(str, kind))
            values[option.name] = str(values[option.name])
            if option.name in of_call and values[option.name] not in choices:
                name = "--" + option.name.replace("_", "-")
                raise ValueError(f"{name} {values[option.name]}: there are {', '.join(choices)}")
    return Namespace(**values)


def _values(holder: Any, names: Iterable[str]) -> dict[str, Any]:
    """Finds those of the names that something holds, with their values."""
    if not isinstance(holder, DictConfig):
        return {name: getattr(holder, name) for name in names if hasattr(holder, name)}
    values, nodes = {}, holder._content  # to ask the configuration itself takes long
    assert isinstance(nodes, dict)
    for name in names:
        if name in nodes:
            value = nodes[name]._value()
            if isinstance(value, str) and "${" in value:  # it stands in another section
                try:
                    value = holder[name]
                except OmegaConfBaseException:
                    value = False
            values[name] = value
    return values
