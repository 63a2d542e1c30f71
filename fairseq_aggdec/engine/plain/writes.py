"""Tells whether dictionaries of Python were written to since they were last looked at: one call of the compiled
library.

CPython 3.11 counts: each write gives a dictionary a version that none had before (PEP 509). The versions are read where
they stand in memory, as TorchDynamo reads them. With any other Python there may always have been a write.
"""

import ctypes
import gc
import itertools
import sys
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.windows.transfer import int64_array

RELEASE = sys.implementation.name == "cpython" and not hasattr(sys, "gettotalrefcount")
COUNTED = RELEASE and sys.version_info[:2] == (3, 11) and sys.maxsize > 2**32
# Bytes from where an object stands to its class, and from where a dictionary stands to its version.
CLASS, VERSION = 8, 24
# Of a class whose objects have the address of their dictionary that many bytes before them.
MANAGED_DICT, DICT = 1 << 4, -24

_order = attrgetter("__mro__")


def tables_of(classes: Iterable[type]) -> list[Any]:
    """The dictionaries of classes themselves, behind the views that ``vars()`` gives."""
    return gc.get_referents(*map(vars, classes))


def _dict_place(thing: Any, own: Any) -> int | None:
    """Finds where an object has the address of its dictionary ``own``: ``__dict__`` may be replaced; None: not
    known."""
    cls = type(thing)
    place = id(thing) + (DICT if cls.__flags__ & MANAGED_DICT else max(0, cls.__dictoffset__))
    return place if ctypes.c_uint64.from_address(place).value == id(own) else None


class Writes:
    """Tells whether attributes of objects or of their classes were written to.

    Args:
        things: objects: their class, the attributes of their own, those of the class and its bases. Kept alive.
        tables: more dictionaries. That ``OrderedDict.move_to_end`` changes the order of one is not seen.
        places: more addresses of 8 bytes, which the caller keeps alive.
    """

    def __init__(
        self, things: Sequence[Any] = (), tables: Iterable[Any] = (), places: Iterable[int] = ()
    ):
        self.classes = list(set(map(type, things)))
        self.orders = list(map(_order, self.classes))
        bases = set(itertools.chain(*self.orders))
        own = [getattr(thing, "__dict__", None) for thing in things]
        self.kept = things, [*own, *tables, *tables_of(bases)]
        of_dicts = list(map(_dict_place, things, own)) if COUNTED else []
        at = [*places, *(id(thing) + CLASS for thing in things), *filter(None, of_dicts)]
        at += [id(table) + VERSION for table in self.kept[1]]
        self.places, self.found = int64_array(at), int64_array([0] * len(at))
        self.call = self.places.buffer_info()[0], self.found.buffer_info()[0], len(at)
        # Scripted modules and things with slots have something else in place of dictionaries.
        dicts = None not in of_dicts and all(isinstance(table, dict) for table in self.kept[1])
        self.sure = bool(at) and COUNTED and dicts and kernels() is not None
        self.any()

    def any(self) -> bool:
        """Tells whether there may have been a write since this was last asked, or since it was made."""
        if not self.sure or kernels().aggdec_written(*self.call):
            return True
        before, self.orders = self.orders, list(map(_order, self.classes))
        return before != self.orders

    def __reduce__(self) -> tuple[Any, ...]:
        return Writes, ()  # a copy of what it watches stands elsewhere
