"""Everything that weights-only loading may make of a checkpoint beside tensors: :func:`safe_globals`.

The loader *calls* what is on that list, with arguments of the file's choice, fills instances with a state of the file's
choice, as often as the file likes, and sets any attribute of theirs. An array of NumPy would read memory at an address
of the file's choice, or free memory that a tensor still reads; a container of OmegaConf would run resolvers. So the
list has no class of either. What stands under their names here are functions and classes of Python alone: they take
what a training run writes and refuse everything else. Python objects have no addresses to be set.

The reason for each entry is its docstring, or stands beside it in :func:`safe_globals`.
"""

import argparse
import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy
import numpy.typing
from omegaconf import AnyNode, DictConfig, ListConfig
from omegaconf.base import Node

from fairseq_aggdec.stored.nodes import ALLOWED, value_node
from fairseq_aggdec.stored.options import CheckpointError, check_interpolation

# Numbers without pointers, names of fields or sizes of their own.
NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
ORDERS = {"<", ">", "=", "|"}
TYPE_NAMES = (
    *(f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "str")),
    *(f"typing.{name}" for name in ("Any", "Dict", "List", "Tuple")),
    "numpy.ndarray",
)
METADATA = ("ContainerMetadata", "Metadata")
NODES = ("AnyNode", "BooleanNode", "EnumNode", "FloatNode", "IntegerNode", "StringNode")
METERS = ("AverageMeter", "StopwatchMeter", "SumMeter", "TimeMeter")


def only_named(*_: Any) -> None:
    """Stands in for a type: files name types beside what is made of them, and none that was trained calls one."""
    raise CheckpointError("it calls a type that training only names")


class NumberType:
    """Stands in for ``numpy.dtype``: the type of a plain number. Its state is the order of the bytes, which is set
    once.

    NumPy's own would take any state: a size, fields, flags of an object.
    """

    __slots__ = "code", "order"

    def __init__(self, code: str, align: bool = False, copy: bool = True):
        if code not in NUMBERS:
            raise CheckpointError(f"it has numbers of type {code!r:.40}, which are none")
        self.code, self.order = code, ""

    def __setstate__(self, state: Any) -> None:
        """Takes ``(version, order, fields, names, ...)`` as NumPy writes it, without fields."""
        _, order, *rest = state
        if self.order or order not in ORDERS or rest[:3] != [None, None, None]:
            raise CheckpointError("it has a type of numbers with more than an order of bytes")
        self.order = order


def values(kind: Any, data: bytes, count: int) -> numpy.typing.NDArray[Any]:
    """Reads so many numbers out of exactly their bytes, as an array that cannot be written to."""
    if isinstance(kind, numpy.dtype):  # where the user has listed NumPy's own
        order, code = kind.str[0], kind.str[1:]
    else:
        order, code = kind.order or "=", kind.code
    if code not in NUMBERS or order not in ORDERS:  # a file can set attributes, too
        raise CheckpointError("it has numbers of a type that are none")
    if type(data) is not bytes or len(data) != count * int(code[1:]):
        raise CheckpointError(f"it has {count} numbers of type {code} in other bytes than theirs")
    if code == "b1":  # a byte other than 0 and 1 is no boolean
        return numpy.frombuffer(data, numpy.uint8) != 0
    return numpy.frombuffer(data, order + code)


def scalar(kind: Any, data: bytes) -> Any:
    """Stands in for ``numpy...multiarray.scalar``: one number, which nobody can change afterwards."""
    return values(kind, data, 1)[0]


class StoredArray:
    """Stands in for ``numpy...multiarray._reconstruct``: an array as type, shape and bytes, which are set once.

    ``numpy.asarray`` makes an array of it. fairseq reads none of a checkpoint's. The file holds no array itself: it
    could set its memory anew while a tensor still reads it.
    """

    __slots__ = "content"
    content: tuple[Any, tuple[int, ...], Literal["C", "F"], bytes]

    def __init__(self, *_: Any):
        """Takes what NumPy notes for an array that is still empty, and needs none of it."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, data = state
        if hasattr(self, "content"):
            raise CheckpointError("it fills an array in twice")
        self.content = kind, shape, "F" if by_columns else "C", data
        self.__array__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.typing.NDArray[Any]:
        kind, shape, order, data = self.content
        if type(shape) is not tuple or not all(type(size) is int and size >= 0 for size in shape):
            raise CheckpointError("it has an array of an impossible shape")
        flat = values(kind, data, math.prod(shape))
        return flat.reshape(shape, order=order).astype(dtype or flat.dtype)


class Forgotten:
    """Stands in for OmegaConf's metadata, which name classes: takes whatever a file says and keeps nothing."""

    __slots__ = ()

    def __init__(self, *_: Any):
        """Keeps nothing."""

    def __setstate__(self, state: Any) -> None:
        """Keeps nothing."""


def plain_dict(*_: Any) -> dict[Any, Any]:
    """Stands in for ``defaultdict``: a dictionary without the function that makes its defaults."""
    return {}


def no_bytes(*arguments: Any) -> bytes:
    """Stands in for ``bytes``, which pickles call where there are none. With a number it would take memory."""
    if arguments:
        raise CheckpointError("it makes bytes out of something else")
    return b""


def _filled_once(kind: Any, fill: Callable[[Any, dict[str, Any]], Any]) -> type:
    """A class in place of one of OmegaConf's nodes.

    Calling it makes a node without content, and takes nothing. Its state is handed to `fill`, which gives a node made
    by OmegaConf out of what may stand there. The instance takes over that node's content and is of class `kind` from
    then on, which is not on the list: it cannot be filled in again.
    """

    def setstate(self: Any, state: Any) -> None:
        vars(self).update(vars(fill(self, state)))
        object.__setattr__(self, "__class__", kind)

    def made(cls: type) -> Any:
        return object.__new__(cls)

    methods = {"__new__": made, "__init__": lambda self: None, "__setstate__": setstate}
    return type(
        f"Stored{kind.__name__}", (kind,), methods | {"__slots__": (), "__module__": __name__}
    )


def _value(_: Any, state: dict[str, Any]) -> AnyNode:
    """A value; a text must not be an interpolation that calls a function, as reading the value would."""
    value = state["_val"]
    check_interpolation(value)
    return value_node(value)


def _dictionary(node: Any, state: dict[str, Any]) -> DictConfig:
    content = state["_content"]
    check_interpolation(content)
    if content is None or type(content) is str:
        return DictConfig(content, **ALLOWED)
    if type(content) is not dict:
        raise CheckpointError("it has a configuration that is no dictionary")
    made = DictConfig({}, **ALLOWED)
    vars(made)["_content"].update(_children(node, content.items()))
    return made


def _list(node: Any, state: dict[str, Any]) -> ListConfig:
    content = state["_content"]
    check_interpolation(content)
    if content is None or type(content) is str:
        return ListConfig(content, **ALLOWED)
    if type(content) is not list:
        raise CheckpointError("it has a list of options that is none")
    made = ListConfig([], **ALLOWED)
    vars(made)["_content"].extend(one for _, one in _children(node, enumerate(content)))
    return made


def _children(parent: Any, items: Any) -> Iterator[tuple[Any, Node]]:
    """The nodes in a container, each with one parent: with two, a small file could make a huge configuration."""
    for key, one in items:
        if not isinstance(
            one, Node
        ):  # `aggdec upgrade-checkpoint` knows classes of nodes by their names only
            one = value_node(one)
        if type(one) not in (AnyNode, DictConfig, ListConfig) or vars(one)["_parent"] is not None:
            raise CheckpointError("it has a configuration with one part in two places")
        vars(one)["_parent"] = parent
        one._set_key(key)
        yield key, one


@functools.cache
def safe_globals() -> list[Any]:
    """Lists what weights-only loading may name: pairs of a thing and the name that files have for it.

    A namespace and a meter are their own classes: objects of Python, whose calls store arguments and whose attributes
    are whatever a file says, as those of PyTorch's own ``OrderedDict`` are.
    """
    safe: list[Any] = [
        (argparse.Namespace, "argparse.Namespace"),
        (NumberType, "numpy.dtype"),
        (plain_dict, "collections.defaultdict"),
        (no_bytes, "builtins.bytes"),
        (_filled_once(DictConfig, _dictionary), "omegaconf.dictconfig.DictConfig"),
        (_filled_once(ListConfig, _list), "omegaconf.listconfig.ListConfig"),
    ]
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):  # of NumPy 2, and of 1
        safe += [(scalar, f"{module}.scalar"), (StoredArray, f"{module}._reconstruct")]
    safe += [(only_named, name) for name in TYPE_NAMES]
    safe += [(Forgotten, f"omegaconf.base.{name}") for name in METADATA]
    node = _filled_once(AnyNode, _value)
    safe += [(node, f"omegaconf.nodes.{name}") for name in NODES]
    meters = importlib.import_module("fairseq.logging.meters")
    for module in ("fairseq.meters", "fairseq.logging.meters"):  # of old checkpoints, and of newer
        safe += [(getattr(meters, name), f"{module}.{name}") for name in METERS]
    return safe
