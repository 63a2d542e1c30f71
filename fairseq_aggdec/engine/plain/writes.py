"""Whether dictionaries of Python were written to since they were last looked at: one call of the compiled library.

CPython 3.11 counts: each write gives a dictionary a version that none had before (PEP 509). The versions are read where
they stand in memory, as TorchDynamo reads them. With any other Python there may always have been a write.
"""

import gc
import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.windows.transfer import words

RELEASE = sys.implementation.name == "cpython" and not hasattr(sys, "gettotalrefcount")
COUNTED = RELEASE and sys.version_info[:2] == (3, 11) and sys.maxsize > 2**32
# Bytes from where an object stands to its class, and from where a dictionary stands to its version.
CLASS, VERSION = 8, 24

_order = attrgetter("__mro__")


def table_of(cls: type) -> dict[str, Any]:
    """The dictionary of a class itself, behind the view that ``vars()`` gives."""
    (table,) = gc.get_referents(vars(cls))
    return table


class Writes:
    """Whether attributes of objects or of their classes were written to.

    Args:
        things: objects: their class, the attributes of their own, those of the class and its bases.
        tables: more dictionaries. That ``OrderedDict.move_to_end`` changes the order of one is not seen.
        owner: one more object, which is not kept alive: this may be asked while it and its dictionary are.
    """

    def __init__(
        self,
        things: Iterable[Any] = (),
        tables: Iterable[dict[Any, Any]] = (),
        owner: Any = None,
    ):
        self.things = things = list(things)
        read = things if owner is None else [*things, owner]
        self.owner = id(owner), id(None if owner is None else vars(owner))
        self.classes = list(set(map(type, read)))
        self.orders = list(map(_order, self.classes))
        bases = {base for order in self.orders for base in order}
        # Alive, as their memory is read.
        self.tables = [*map(vars, things), *tables, *map(table_of, bases)]
        places = [id(thing) + CLASS for thing in read]
        places += [id(table) + VERSION for table in self.tables]
        if owner is not None:
            places.append(id(vars(owner)) + VERSION)
        self.places, self.found = words(places), words([0] * len(places))
        (at, count), (found, _) = self.places.buffer_info(), self.found.buffer_info()
        # Scripted modules have something else in place of dictionaries.
        sure = read and COUNTED and all(isinstance(table, dict) for table in self.tables)
        self.call = (at, found, count) if sure and kernels() is not None else None
        self.any()

    def any(self) -> bool:
        """Whether there may have been a write since this was last asked, or since it was made."""
        if self.call is None or kernels().aggdec_written(*self.call):
            return True
        before, self.orders = self.orders, list(map(_order, self.classes))
        return before != self.orders

    def __reduce__(self) -> tuple[Any, ...]:
        return Writes, ()  # a copy of what it watches stands elsewhere
