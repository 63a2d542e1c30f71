"""How a worker ends that is asked to: at once, but not between two steps that belong together.

``SIGTERM`` can come between any two instructions. Where a claim's file is made and not yet known to whoever would remove
it, an end at once leaves the claim behind, and others wait a lease for nobody.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Ending:
    """Attributes: together: how many blocks of :func:`together` the main thread is in. asked: a signal's number."""

    together = 0
    asked: int | None = None


def ask(number: int, frame: object = None) -> None:
    """Handles a signal: ``SystemExit``, with the status of a process that it killed, as soon as may be."""
    _Ending.asked = number
    _end_if_asked()


@contextmanager
def together() -> Iterator[None]:
    """An end that is asked for in here comes after it, or in :func:`apart`."""
    if not _in_main():  # which no signal breaks into
        yield
        return
    _Ending.together += 1
    try:
        yield
    finally:
        _Ending.together -= 1
    _end_if_asked()


@contextmanager
def apart() -> Iterator[None]:
    """Within :func:`together`: an end may come here."""
    if not _in_main():
        yield
        return
    _Ending.together -= 1
    try:
        _end_if_asked()
        yield
    finally:
        _Ending.together += 1


def _end_if_asked() -> None:
    if _Ending.asked is not None and _Ending.together <= 0:
        number, _Ending.asked = _Ending.asked, None
        sys.exit(128 + number)


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()
