"""One thread at a time: a generator holds caches and C structures of the batch that it decodes."""

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class OneThread:
    """A context that a second caller may not enter: it gets an error, where waiting could wait for itself.

    A copy is free, whatever the original is: copies of a generator share nothing that this guards.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        """Raises ``RuntimeError`` while another call is inside."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this generator is decoding a batch already: give every thread a generator of its own, or use "
                "fairseq_aggdec.from_pretrained(), whose Translator lets threads take turns"
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return OneThread, ()


def exclusive(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method that runs once at a time on each object; see :class:`OneThread` for what a second call gets."""

    @functools.wraps(method)
    def guarded(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        # setdefault is atomic, and needs no constructor that subclasses would have to call first.
        with self.__dict__.setdefault("_one_thread", OneThread()):
            return method(self, *args, **kwargs)

    return guarded
