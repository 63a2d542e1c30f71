"""Streams, events and the current device of the strict device.

Work is done at once, but what a copy to the host brings arrives late: its numbers are nonsense until an event behind
the copy on its own stream was asked, or the host waited for that stream. An event of another stream says nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.strict.device.recorder import BLOCKING, Recorder

DEVICES = (torch.device("cuda", 0), torch.device("cuda", 1))
WRONG = -(2**40)  # what no token, position or index is


def spoilt(tensor: Tensor) -> None:
    """Fills a tensor with what nobody can take for a result."""
    wrong = WRONG if tensor.dtype is torch.long else 1
    tensor.fill_(torch.nan if tensor.is_floating_point() else wrong)


class Stream:
    """A stream of one device.

    Attributes:
        cuda_stream: its handle.
        underway: copies to the host (tensor, its numbers) that nobody has waited for.
    """

    def __init__(self, streams: Streams, device: Any = None):
        self.streams, self.device = streams, streams.device_of(device)
        self.underway: list[tuple[Tensor, Tensor]] = []
        self.cuda_stream = len(streams.all) % 32  # as PyTorch gives them out
        streams.all.append(self)

    def copies(self, found: Tensor) -> Tensor:
        """Takes the numbers of a tensor on their way to the host; it has others until they arrive."""
        self.underway.append((found, found.clone()))
        spoilt(found)
        return found

    def arrives(self, count: int | None = None) -> None:
        """The first copies under way, or all, have ended."""
        with torch.inference_mode():  # as most of them were made
            for tensor, numbers in self.underway[:count]:
                tensor.copy_(numbers)
        del self.underway[:count]

    def record_event(self, event: Any = None) -> Event:
        self.streams.count("record_event")
        event = event or Event(self.streams)
        event.mark(self)
        return event

    def wait_event(self, event: Event) -> None:
        self.streams.count("wait_event")

    def wait_stream(self, stream: Stream) -> None:
        self.streams.count("wait_stream")

    def synchronize(self) -> None:
        self.streams.waited()
        self.arrives()


class Event:
    """Behind what a stream was given before it was recorded."""

    def __init__(self, streams: Streams, *_: Any, **__: Any):
        self.streams = streams
        self.stream: Stream | None = None
        self.before: list[Tensor] = []

    def mark(self, stream: Stream) -> None:
        self.stream, self.before = stream, [tensor for tensor, _ in stream.underway]

    def record(self, stream: Stream | None = None) -> None:
        self.streams.count("record")
        self.mark(stream or self.streams.current())

    def query(self) -> bool:
        if self.stream is not None and self.before:
            left = [tensor for tensor, _ in self.stream.underway]
            self.stream.arrives(sum(any(own is t for own in self.before) for t in left))
        return True

    def synchronize(self) -> None:
        self.streams.waited()
        self.query()


class Streams:
    """What takes the place of the functions of ``torch.cuda``."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.all: list[Stream] = []
        self.device = DEVICES[0]  # the current one
        self.main = {device: Stream(self, device) for device in DEVICES}
        self.now = dict(self.main)

    def count(self, name: str) -> None:
        self.recorder.streams[name] += 1

    def waited(self) -> None:
        self.count("synchronize")
        self.recorder.note(BLOCKING, "synchronize")

    def device_of(self, device: Any = None) -> torch.device:
        """A device with its number; the current one where none is said."""
        if device is None or isinstance(device, int):
            return self.device if device is None else DEVICES[device]
        found = torch.device(device)
        return self.device if found.index is None else found

    def current(self, device: Any = None) -> Stream:
        return self.now[self.device_of(device)]

    @contextmanager
    def stream(self, other: Stream | None) -> Iterator[None]:
        self.count("stream")
        if other is None:
            yield
            return
        before, self.now[other.device] = self.now[other.device], other
        with self.on(other.device):
            try:
                yield
            finally:
                self.now[other.device] = before

    @contextmanager
    def on(self, device: Any) -> Iterator[None]:
        before, self.device = self.device, self.device_of(device)
        try:
            yield
        finally:
            self.device = before

    def synchronize(self, device: Any = None) -> None:
        wanted = self.device_of(device)
        self.waited()
        for stream in self.all:
            if stream.device == wanted:
                stream.arrives()

    def stands_in(self) -> dict[str, Any]:
        """The names of ``torch.cuda`` that these take the place of."""
        return {
            "_lazy_init": lambda: None,
            "current_stream": self.current,
            "current_device": lambda: self.device.index,
            "device": self.on,
            "Stream": lambda device=None, **_: Stream(self, device),
            "Event": lambda **_: Event(self),
            "stream": self.stream,
            "synchronize": self.synchronize,
        }


@functools.cache
def let_guards_pass() -> None:
    """Gives ``cuda`` the device guard of the CPU, which does nothing.

    PyTorch without CUDA has none and refuses to index a tensor that says it is there, before any operator is called.
    PyTorch's own ``_ensureCUDADeviceGuardSet`` does this in builds with CUDA where no GPU is found.
    """
    torch._C._ensureCUDADeviceGuardSet()
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    guards = (ctypes.c_void_p * 2).in_dll(
        ctypes.CDLL(str(library)), "_ZN3c104impl26device_guard_impl_registryE"
    )
    cpu, cuda = 0, 1
    if not guards[cuda]:
        guards[cuda] = guards[cpu]
