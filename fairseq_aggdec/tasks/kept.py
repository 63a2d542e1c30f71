"""The generators that a task has built, for the next call with the same options: fairseq's hub builds one per call."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_aggdec.search.generator import CachedGenerator

MOST = 4  # generators of one task
LEARNED = {"budget", "device_loop"}  # made with the first batch
PLAIN = (bool, int, float, str, bytes, enum.Enum, type(None))
Values = dict[str, Any]


def values_of(holder: Any) -> Values | None:
    """The options that something holds, for comparison; None where one of them is no plain value.

    Args:
        holder: a configuration of OmegaConf, a mapping or any object.
    """
    found: Values = {}
    if isinstance(holder, DictConfig):
        content = holder._content
        if not isinstance(content, dict):
            return None
        items = {str(name): _content(node) for name, node in content.items()}
    else:
        items = dict(holder if isinstance(holder, Mapping) else getattr(holder, "__dict__", {}))
    for name, value in items.items():
        if isinstance(value, list | tuple) and all(isinstance(one, PLAIN) for one in value):
            found[name] = list(value)
        elif isinstance(value, PLAIN):
            found[name] = value
        else:
            return None
    return found


def _content(node: Any) -> Any:
    """The value of a node, interpolations unresolved: that takes long."""
    content = node._content if hasattr(node, "_content") else node._value()
    return [_content(one) for one in content] if isinstance(content, list) else content


def same_fields(one: Any, other: Any) -> bool:
    """Whether two stock generators, or parts of them, were built of equal values and of the same objects."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Module):
        return same_fields(vars(one), vars(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same_fields(value, other[name]) for name, value in one.items() if name != "src_lengths"
        )
    if isinstance(one, Tensor):
        return one.shape == other.shape and bool((one == other).all())
    return isinstance(one, (*PLAIN, list, tuple, set)) and bool(one == other)


@dataclass
class KeptGenerator:
    """One generator.

    Attributes:
        options: of the call, the task and ``adopt()``, as :func:`values_of` gives them.
        asked: the plugin's options.
        stock: the generator of the task itself.
        generator: ours, which the caller may have changed since.
        plain: a copy of it from when it was built.
    """

    options: list[Values | None]
    asked: Any
    stock: Any
    generator: CachedGenerator

    def __post_init__(self) -> None:
        self.plain = apart(self.generator)


class KeptGenerators:
    """The last generators of a task, with what they have learned about drafts."""

    def __init__(self) -> None:
        self._records: list[KeptGenerator] = []

    def find(self, options: list[Values | None], models: Any) -> KeptGenerator | None:
        """The generator of these options and models, which is the last one from now on."""
        for record in self._records:
            verifier = record.generator.verifier
            if record.options == options and verifier.fits(models, record.generator.precision):
                self._records.remove(record)
                self._records.append(record)
                return record
        return None

    def add(self, record: KeptGenerator) -> None:
        self._records = [*self._records[1 - MOST :], record]


def apart(generator: CachedGenerator) -> CachedGenerator:
    """A copy that shares what was learned; what is put onto one of the two does not change the other."""
    found = copy.copy(generator)
    own: dict[str, Any] = found.__dict__
    own.pop("_one_thread", None)
    for name in vars(nn.Module()).keys() & own.keys():  # its modules, hooks, ...
        own[name] = copy.copy(own[name])
    return found


def again(record: KeptGenerator, stock: Any, anew: Callable[[], Any], args: Any) -> CachedGenerator:
    """A generator like the one before, which shares its verifier and what it has learned.

    Args:
        stock: the generator that the task has built now, whose parts nobody has changed.
        anew: builds one that shares nothing; for two that decode at the same time.
        args: fairseq's generation options, in which methods of the loop set the beam.
    """
    generator = apart(record.plain)
    for name in LEARNED & vars(record.generator).keys():
        setattr(generator, name, getattr(record.generator, name))
    generator.search, generator.model = stock.search, stock.model
    generator.symbols_to_strip_from_output = set(stock.symbols_to_strip_from_output)
    generator.anew = anew
    generator.model.set_decoder_beam_size(generator.beam_size)
    if getattr(args, "beam", generator.beam_size) != generator.beam_size:
        args.beam = generator.beam_size
    return generator
