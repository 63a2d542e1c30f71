"""What the strict device was asked to do: events, where they come from, and streams that do nothing but be counted."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import fairseq_aggdec

PACKAGE = Path(fairseq_aggdec.__path__[0])

KERNEL, VIEW, TRANSFER, BLOCKING = "kernels", "views", "copies", "blocking"
IN_GRAPH = "in graphs"  # kernels that a replayed graph launches; the graph itself counts as one
# A blocking operator that is no copy (nonzero) counts as a kernel and as blocking.
KINDS = (KERNEL, IN_GRAPH, VIEW, TRANSFER, BLOCKING)


@dataclass(frozen=True)
class Event:
    """One thing that the device was asked to do.

    Attributes:
        kind: one of ``KINDS``.
        operator: its name.
        place: ``file:line`` of the innermost line of this package, relative to it.
        moment: whatever :attr:`Recorder.moment` was.
    """

    kind: str
    operator: str
    place: str
    moment: Any


@dataclass
class Recorder:
    """What the device was asked to do.

    Attributes:
        events: in order.
        streams: calls of streams and events, by name.
        moment: noted with every event.
        tape: of the graph that is captured, whose operators are no events.
    """

    events: list[Event] = field(default_factory=list)
    streams: Counter[str] = field(default_factory=Counter)
    moment: Callable[[], Any] = lambda: None
    tape: Any = None

    def note(self, kind: str, operator: str) -> None:
        if self.tape is not None:
            self.tape.note(kind, operator)
            return
        self.events.append(Event(kind, operator, _place(sys._getframe(1)), self.moment()))


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


class Stream:
    """A stream, or an event, that does nothing but be counted."""

    recorder: Recorder

    def __init__(self, *_: Any, **__: Any):
        pass

    def _count(self, name: str) -> None:
        self.recorder.streams[name] += 1

    def record_event(self, event: Any = None) -> Any:
        self._count("record_event")
        return event or self

    def record(self, stream: Any = None) -> None:
        self._count("record")

    def wait_event(self, event: Any) -> None:
        self._count("wait_event")

    def wait_stream(self, stream: Any) -> None:
        self._count("wait_stream")

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._count("synchronize")
        self.recorder.note(BLOCKING, "synchronize")


def stands_in(recorder: Recorder) -> dict[str, Any]:
    """What takes the place of the functions of ``torch.cuda``."""
    kind = type("Stream", (Stream,), {"recorder": recorder})
    main = kind()

    @contextmanager
    def stream(other: Any) -> Iterator[None]:
        recorder.streams["stream"] += 1
        yield

    return {
        "_lazy_init": lambda: None,
        "current_stream": lambda device=None: main,
        "Stream": kind,
        "Event": kind,
        "stream": stream,
        "synchronize": lambda device=None: main.synchronize(),
    }
