"""Captured graphs on the strict device: a list of operators over the tensors that they met, done again at each replay.

As unforgiving as CUDA:

- a capture computes nothing: what it wrote is put back at its end, and what it gave holds NaN until the first replay;
- a transfer, a number of the host, memory to be pinned or anything that waits ends it with an error;
- a replay reads and writes the memory of the capture, calls no Python of the model, and says so where that memory was
  given up since;
- what a graph gave is overwritten when another one of its pool is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from tests.strict.device.recorder import BLOCKING, IN_GRAPH, KERNEL, TRANSFER, Recorder
from tests.strict.device.streams import Streams, spoilt

Pool = list["Tape"]


class CaptureError(AssertionError):
    """What CUDA does not permit while a stream is captured, or what a replay would read that is gone.

    No ``RuntimeError``: the plugin must not take it for a capture that happened to fail.
    """


class CaptureFailed(RuntimeError):
    """A capture that a test wants to fail, as one does that runs out of memory."""


class Given:
    """A tensor that was there before the capture, whose memory the graph does not keep."""

    def __init__(self, tensor: Tensor):
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.shape = tensor.storage_offset(), tensor.size(), tensor.stride()
        self.dtype = tensor.dtype

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise CaptureError("a graph is replayed whose memory was given up")
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.shape)


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (Tensor, Given)):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_map(change, part) for part in value])
    return value


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _map(found.append, value)
    return found


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Tape:
    """What was captured.

    Args:
        recorder: learns of replays.
        pool: the graphs that share memory.
    """

    def __init__(self, recorder: Recorder, pool: Pool):
        self.recorder, self.pool = recorder, pool
        self.calls: list[tuple[Any, Any, dict[str, Any], list[Tensor]]] = []
        self.own: dict[int, Tensor] = {}  # memory that the capture took
        self.before: list[tuple[Tensor, Tensor]] = []
        self.names: list[str] = []
        self.holds = True  # what was computed, not nonsense
        pool.append(self)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], view: bool) -> Any:
        """Computes an operator on the CPU and writes it down."""
        arguments = func._schema.arguments
        for argument, value in [
            *zip(arguments, args, strict=False),
            *(
                (argument, kwargs[argument.name])
                for argument in arguments
                if argument.name in kwargs
            ),
        ]:
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.before += [(t, t.clone()) for t in _tensors(value) if self._given(t)]
        given = _map(self._kept, (tuple(args), tuple(kwargs.values())))
        found = func(*args, **kwargs)
        if view:
            return found
        known = {id(tensor) for tensor in _tensors((tuple(args), tuple(kwargs.values())))}
        made = _tensors(found)
        new = [tensor for tensor in made if id(tensor) not in known]
        self.own |= {_address(tensor): tensor for tensor in new}
        self.calls.append(
            (func, given[0], dict(zip(kwargs, given[1], strict=True)), made if new else [])
        )
        return found

    def note(self, kind: str, operator: str) -> None:
        """What a GPU would be asked to do.

        Raises:
            CaptureError: it would refuse.
        """
        if kind in (TRANSFER, BLOCKING):
            raise CaptureError(f"{operator}: not permitted while a graph is captured")
        if kind == KERNEL:
            self.names.append(operator)

    def _given(self, tensor: Tensor) -> bool:
        return _address(tensor) not in self.own

    def _kept(self, tensor: Tensor) -> Tensor | Given:
        return Given(tensor) if self._given(tensor) else tensor

    def end(self) -> None:
        for tensor, numbers in reversed(self.before):
            tensor.copy_(numbers)
        self.before.clear()
        self.spoil()

    def spoil(self) -> None:
        """Whoever reads now what the graph gave reads nonsense."""
        if self.holds:
            for tensor in self.own.values():
                spoilt(tensor)
        self.holds = False

    def replay(self) -> None:
        self.recorder.note(KERNEL, "graph")
        for name in self.names:
            self.recorder.note(IN_GRAPH, name)
        with _disable_current_modes():
            for other in self.pool:
                if other is not self:
                    other.spoil()
            self._compute()

    def _compute(self) -> None:
        self.holds = True
        for func, args, kwargs, made in self.calls:
            there = [_map(_there, value) for value in args]
            named = {name: _map(_there, value) for name, value in kwargs.items()}
            found = _tensors(func(*there, **named))
            for tensor, numbers in zip(made, found, strict=False):
                tensor.copy_(numbers)

    @property
    def bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.own.values())


def _there(value: Tensor | Given) -> Tensor:
    return value.tensor() if isinstance(value, Given) else value


class CUDAGraph:
    """What takes the place of ``torch.cuda.CUDAGraph``."""

    recorder: Recorder
    streams: Streams
    tape: Tape | None = None

    def capture_begin(self, pool: Pool, capture_error_mode: str = "global") -> None:
        self.stream = self.streams.current()
        if self.stream is self.streams.main[self.stream.device]:
            raise CaptureError("the default stream cannot be captured")
        if self.recorder.tape is not None:
            raise CaptureError("two captures at a time")
        self.recorder.tape = Tape(self.recorder, pool)

    def capture_end(self) -> None:
        recorder = self.recorder
        tape, recorder.tape = recorder.tape, None
        tape.end()
        if self.streams.current() is not self.stream:
            raise CaptureError("a capture ends on another stream than it began")
        if recorder.failing:
            recorder.failing -= 1
            raise CaptureFailed("operation failed due to a previous error during capture")
        self.tape = tape

    def replay(self) -> None:
        if self.tape is None or self.recorder.tape is not None:
            raise CaptureError("a graph is replayed that was not captured, or within a capture")
        self.tape.replay()


def stands_in(recorder: Recorder, streams: Streams) -> dict[str, Any]:
    """What takes the place of the names of ``torch.cuda``. ``graph`` does not: it empties the program's caches."""
    pools: list[Pool] = []

    def graph_pool_handle() -> Pool:
        pools.append([])
        return pools[-1]

    def memory_reserved(device: Any = None) -> int:
        return sum(tape.bytes for pool in pools for tape in pool)

    return {
        "CUDAGraph": type("CUDAGraph", (CUDAGraph,), {"recorder": recorder, "streams": streams}),
        "graph_pool_handle": graph_pool_handle,
        "memory_reserved": memory_reserved,
        "memory_allocated": memory_reserved,
        "mem_get_info": lambda device=None: (2**40, 2**40),
    }
