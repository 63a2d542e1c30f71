"""What the strict device was asked to do: events, and where they come from."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import fairseq_aggdec

PACKAGE = Path(fairseq_aggdec.__path__[0])

KERNEL, VIEW, TRANSFER, BLOCKING = "kernels", "views", "copies", "blocking"
IN_GRAPH = "in graphs"  # kernels that a replayed graph launches; the graph itself counts as one
# A blocking operator that is no copy (nonzero) counts as a kernel and as blocking.
KINDS = (KERNEL, IN_GRAPH, VIEW, TRANSFER, BLOCKING)


class Event(NamedTuple):
    """One thing that the device was asked to do.

    Attributes:
        kind: one of ``KINDS``.
        operator: its name.
        place: ``file:line`` of the innermost line of this package, relative to it.
        moment: whatever :attr:`Recorder.moment` was.
        bytes: that are copied between host and device.
    """

    kind: str
    operator: str
    place: str
    moment: Any
    bytes: int = 0


@dataclass
class Recorder:
    """What the device was asked to do.

    Attributes:
        events: in order.
        streams: calls of streams and events, by name.
        moment: noted with every event.
        tape: of the graph that is captured, whose operators are no events.
        failing: how many captures are to fail from now on.
    """

    events: list[Event] = field(default_factory=list)
    streams: Counter[str] = field(default_factory=Counter)
    moment: Callable[[], Any] = lambda: None
    tape: Any = None
    failing: int = 0

    def note(self, kind: str, operator: str, copied: int = 0) -> None:
        if self.tape is not None:
            self.tape.note(kind, operator)
            return
        place = _place(sys._getframe(1))
        self.events.append(Event(kind, operator, place, self.moment(), copied))


def _place(frame: FrameType | None) -> str:
    """``file:line`` of the innermost frame of this package but for this module."""
    while frame is not None:
        if name := _name(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


@functools.cache
def _name(file: str) -> str | None:
    """A file of this package, relative to it; None for any other and for the device's own."""
    path = Path(file)
    inside = path.is_relative_to(PACKAGE)
    return str(path.relative_to(PACKAGE)) if inside else None
