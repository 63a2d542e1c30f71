"""The attributes that the objects of a class have, as far as its code tells."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator
from types import CodeType


@functools.cache
def names_of(cls: type) -> frozenset[str]:
    """Names of the attributes of a class, and of those that its methods set on their object."""
    found = {name for base in cls.__mro__ for name in _names_in(base)}
    return frozenset(name for name in found if not name.startswith("__"))


def _names_in(cls: type) -> Iterator[str]:
    yield from vars(cls)
    yield from vars(cls).get("__annotations__", {})
    for value in vars(cls).values():
        parts = [value.fget, value.fset] if isinstance(value, property) else [value]
        for method in filter(callable, parts):
            code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
            if code is not None and code.co_argcount:
                yield from _set_in(code)


def _set_in(code: CodeType) -> Iterator[str]:
    """Names of attributes that a method sets on its first argument."""
    loaded = None
    for step in dis.get_instructions(code):
        if step.opname == "STORE_ATTR" and loaded == code.co_varnames[0]:
            yield step.argval
        # Later versions of Python load two variables at once.
        pair = step.opname.startswith("LOAD_FAST") and isinstance(step.argval, tuple)
        loaded = step.argval[-1] if pair else step.argval
