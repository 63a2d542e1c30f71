"""Launches of kernels by CUDA's driver.

In a captured graph a kernel of ours that follows another one begins before that one has ended (programmatic dependent
launch): it reads weights, then waits. So what it costs to launch it, and to wait for its weights, is hidden behind the
other kernel. A kernel of PyTorch begins when all before it have ended, and so does a kernel of ours behind it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

CAPABILITY = 9, 0  # the least that can launch so
CAPTURES = 1  # the state of a stream: CU_STREAM_CAPTURE_STATUS_ACTIVE


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("blocks", "blocks_y", "blocks_z")),
        *((name, ctypes.c_uint) for name in ("threads", "threads_y", "threads_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_Pointers = ctypes.c_char_p * 1  # to the parameters of a kernel, of which ours have one
DEPENDENT = _Attribute(6, 0, (1,))  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

# What errors of the driver mean for a user.
MEANINGS = {
    2: "the GPU has too little memory",
    200: "the compiled kernels in the cache folder are damaged: remove the folder",
    209: "the driver is too old for the compiler of this PyTorch: update the driver",
    218: "the driver is too old for the compiler of this PyTorch: update the driver",
    700: "a kernel read or wrote where it must not: set FAIRSEQ_AGGDEC_KERNELS=no-gpu and report it",
}

_overlapping: set[torch.device] = set()


@contextmanager
def overlapping(device: torch.device, allowed: bool) -> Iterator[None]:
    """Within this kernels of ours that are captured on a device may begin early. One capture at a time."""
    (_overlapping.add if allowed else _overlapping.discard)(device)
    try:
        yield
    finally:
        _overlapping.discard(device)


def lacking(device: torch.device) -> str | None:
    """Says what dependent launches lack on a device, None: nothing."""
    if not torch.cuda.is_available():
        return "they are for a GPU"
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return "compute capability {}.{} is needed".format(*CAPABILITY)
    driver = ctypes.CDLL("libcuda.so.1")
    if not all(hasattr(driver, x) for x in ("cuLaunchKernelEx", "cuStreamGetCaptureInfo_v3")):
        return "a driver for CUDA 12.3 is needed"
    return None


class Launcher:
    """Requests to a GPU by its driver.

    Attributes:
        captured: the capture in which a kernel of ours was last launched, and its node there.
    """

    def __init__(self, device: torch.device):
        self.device, self.driver = device, ctypes.CDLL("libcuda.so.1")
        self.captured: tuple[int, ...] | None = None
        with torch.cuda.device(device):
            torch.cuda.current_stream(
                device
            ).synchronize()  # the device's context is there from here on
            self.context = ctypes.c_void_p()
            self.call("cuCtxGetCurrent", ctypes.byref(self.context))

    def launch(self, function: Any, parameters: bytes, blocks: int, threads: int) -> None:
        """Launches a kernel on the current stream; ``parameters`` are the bytes of its only one, a struct."""
        pointers = _Pointers(parameters)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        size = blocks, 1, 1, threads, 1, 1, 0
        # The driver launches in its current context. A thread has none before it has asked the device for anything.
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            before = self._nodes(stream) if self.device in _overlapping else None
            if before is not None and before == self.captured:
                config = _Config(*size, stream, ctypes.pointer(DEPENDENT), 1)
                self.call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
            else:
                self.call("cuLaunchKernel", function, *size, stream, pointers, None)
            if before is not None:
                self.captured = self._nodes(stream)
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _nodes(self, stream: ctypes.c_void_p) -> tuple[int, ...] | None:
        """Number of the capture and the nodes that the next launch waits for; None: nothing is captured."""
        state, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
        nodes, edges = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
        references = (ctypes.byref(one) for one in (state, number, nodes, edges, count))
        state_to, number_to, *rest = references
        self.call("cuStreamGetCaptureInfo_v3", stream, state_to, number_to, None, *rest)
        if state.value != CAPTURES:
            return None
        return number.value, *nodes[: count.value]

    def call(self, name: str, *arguments: Any) -> None:
        """Asks the driver.

        Raises:
            RuntimeError: it says no.
        """
        result = getattr(self.driver, name)(*arguments)
        if result:
            meaning = f" ({MEANINGS[result]})" if result in MEANINGS else ""
            raise RuntimeError(f"{name}: CUDA driver error {result}{meaning}")


@functools.cache
def launcher(device: torch.device) -> Launcher:
    return Launcher(device)
