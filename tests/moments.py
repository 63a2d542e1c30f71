"""Something happens when a process touches a file: a signal, or the work of another process in its midst."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir"}


class _Watched:
    """What the hook, which cannot be taken away again, does now."""

    place: str | None = None
    touched: Callable[[str], None] | None = None
    installed = False


@contextmanager
def watched(place: Path, touched: Callable[[str], None]) -> Iterator[None]:
    """Calls ``touched`` with the name of the event before a file in a place is opened, moved, linked or removed."""
    if not _Watched.installed:
        sys.addaudithook(_hook)
        _Watched.installed = True
    _Watched.place, _Watched.touched = str(place), touched
    try:
        yield
    finally:
        _Watched.touched = None


def _hook(event: str, operands: tuple[object, ...]) -> None:
    touched = _Watched.touched
    if touched is not None and event in EVENTS:
        assert _Watched.place is not None
        if any(str(one).startswith(_Watched.place) for one in operands[:2]):
            touched(event)


@contextmanager
def at_moment(place: Path, number: int, act: Callable[[], object]) -> Iterator[list[str]]:
    """Calls ``act`` once, before a file is touched for the ``number``-th time (from 1); the events so far."""
    events: list[str] = []
    acting = False

    def touched(event: str) -> None:
        nonlocal acting
        if acting:
            return
        events.append(event)
        if len(events) == number:
            acting = True
            try:
                act()
            finally:
                acting = False

    with watched(place, touched):
        yield events
