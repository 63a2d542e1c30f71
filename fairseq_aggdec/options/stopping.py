"""Decoding that somebody else may stop: a service whose client has left, for example."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.nn.modules.module import register_module_forward_pre_hook

_thread = threading.local()


class Stopped(Exception):
    """Nobody wants the batch that this thread was decoding."""


@contextmanager
def stoppable(unwanted: Callable[[], bool]) -> Iterator[None]:
    """Within this context the decoding of this thread raises :class:`Stopped` when ``unwanted()`` is true.

    Searches ask at least every 50 ms or once an iteration, whichever is longer.
    """
    _thread.unwanted = unwanted
    try:
        yield
    finally:
        del _thread.unwanted


def check() -> None:
    """Raises :class:`Stopped` when nobody wants what this thread decodes."""
    unwanted = getattr(_thread, "unwanted", None)
    if unwanted is not None and unwanted():
        raise Stopped


@contextmanager
def stock_stoppable() -> Iterator[None]:
    """Within this context stock fairseq's search asks as well, whenever it calls a layer.

    PyTorch's hook is of all modules: fairseq calls ``forward`` of a decoder, which passes by the decoder's own hooks.
    """
    if not hasattr(_thread, "unwanted"):
        yield
        return
    hook = register_module_forward_pre_hook(lambda *_: check())
    try:
        yield
    finally:
        hook.remove()
