"""The streams of a GPU that a generator works on beside the current one.

A library of products keeps scratch memory for each stream, and a captured graph goes on using that of the stream on
which it was captured, wherever it is replayed. So graphs are captured on a stream of their own, and those that are to
run beside the current stream on another one: what runs at the same time never shares scratch memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

BESIDE, CAPTURE, CAPTURE_BESIDE = "beside", "capture", "capture beside"


class Streams:
    """The side streams of one generator, each made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[tuple[torch.device, str], torch.cuda.Stream] = {}

    def get(self, device: torch.device, purpose: str) -> torch.cuda.Stream:
        """The stream of a device for ``BESIDE``, ``CAPTURE`` or ``CAPTURE_BESIDE``."""
        if (device, purpose) not in self._made:
            self._made[device, purpose] = _stream(device, purpose != BESIDE)
        return self._made[device, purpose]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within this, :func:`side_stream` of this thread gives these streams."""
        before, _of_thread.streams = _of_thread.streams, self
        try:
            yield
        finally:
            _of_thread.streams = before


# PyTorch gives out this many streams of a device in turn, then the first again.
POOL = 32
_captured: dict[tuple[torch.device, int], bool] = {}  # which of them are captured, by handle


def _stream(device: torch.device, captured: bool) -> torch.cuda.Stream:
    """A stream that is captured, or one that never is: a capture takes what other threads launch on its stream."""
    for _ in range(2 * POOL):
        stream = torch.cuda.Stream(device)
        key = device, stream.cuda_stream
        alike = [k for k, kind in _captured.copy().items() if k[0] == device and kind == captured]
        if len(alike) < POOL // 2:  # half for each
            _captured.setdefault(key, captured)
        if _captured.get(key) == captured:
            break
    return stream


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.streams = Streams()


_of_thread = _OfThread()


def side_stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """The stream for a purpose of the generator that decodes in this thread."""
    return _of_thread.streams.get(device, purpose)


def capture_purpose(device: torch.device) -> str:
    """Names the purpose of a stream on which work for the current stream is captured."""
    beside = torch.cuda.current_stream(device) == side_stream(device, BESIDE)
    return CAPTURE_BESIDE if beside else CAPTURE


class Beside:
    """Runs work that need not wait for what the current stream was given since this was made.

    What comes later waits for both. On a CPU everything runs in turn.

    Args:
        device: where the work is done; what it reads is on its way there already.
    """

    def __init__(self, device: torch.device):
        self.device = device
        if device.type == "cuda":
            self.ready = torch.cuda.current_stream(device).record_event()

    @contextmanager
    def work(self) -> Iterator[None]:
        if self.device.type != "cuda":
            yield
            return
        main, side = torch.cuda.current_stream(self.device), side_stream(self.device, BESIDE)
        # Blocks of the side stream's memory that the main stream has read were freed before `ready`: from here on the
        # side stream may write to them.
        side.wait_event(self.ready)
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            main.wait_stream(side)
