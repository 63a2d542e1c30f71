"""Tells how a worker ends that is asked to: at once, but not between two steps that belong together.

``SIGTERM`` can come between any two instructions. Where a claim's file is made and not yet known to whoever would
remove it, an end at once leaves the claim behind, and others wait a lease for nobody.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Ending:
    """Tells whether an end has to wait.

    Attributes:
        waits: it has to, now.
        asked, came: number of the signal that asks for an end, and of the one that brought it.
    """

    waits = False
    asked: int | None = None
    came: int | None = None


def ask(number: int, frame: object = None) -> None:
    """Handles a signal: ``SystemExit``, with the status of a process that it killed, as soon as may be."""
    _Ending.asked = number
    _end_if_asked()


def together() -> _Waiting:
    """An end that is asked for in here comes after it, or in :func:`apart`."""
    return _Waiting(True)


def apart() -> _Waiting:
    """Within :func:`together`: an end may come here."""
    return _Waiting(False)


class _Waiting:
    """No generator: one that an end breaks off restores what was before when it is collected, at any time."""

    def __init__(self, waits: bool):
        self.waits, self.before = waits, _Ending.waits

    def __enter__(self) -> None:
        if _in_main():  # no signal breaks into other threads
            _Ending.waits = self.waits
            _end_if_asked()

    def __exit__(self, *_: object) -> None:
        if _in_main():
            _Ending.waits = self.before
            _end_if_asked()


def _end_if_asked() -> None:
    if _Ending.asked is not None and not _Ending.waits:
        number, _Ending.asked = _Ending.asked, None
        _Ending.came = number
        sys.exit(128 + number)


@contextmanager
def insisted() -> Iterator[None]:
    """Around all the work: an end that came within a library, whose own ``finally`` then failed, is still an end."""
    _Ending.came = None
    try:
        yield
    except Exception:
        if _Ending.came is None:
            raise
        sys.exit(128 + _Ending.came)


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()
