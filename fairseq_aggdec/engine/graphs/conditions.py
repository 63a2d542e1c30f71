"""Conditions that decoding needs of a process that it shares with others: the current device, its streams, global
switches.

PyTorch has switches of the whole process that decide how products round and which kernels run. While any generator of
this process decodes they are as decoding needs them, and afterwards as they were.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from fairseq_aggdec.engine.graphs.streams import Streams
from fairseq_aggdec.windows.transfer import HOST


def tf32_allowed() -> bool:
    """Tells whether products of fp32 on a GPU may round to TF32 now, by PyTorch's setting or the driver's variable."""
    forced = os.environ.get("NVIDIA_TF32_OVERRIDE")
    if forced in ("0", "1"):
        return forced == "1"
    matmul = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # set by its new name, which the old one does not follow
        return bool(matmul.fp32_precision == "tf32")


def set_tf32(allowed: bool) -> None:
    """Sets PyTorch's setting for products on a GPU, and no other."""
    matmul: Any = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = "tf32" if allowed else "ieee"
    else:
        matmul.allow_tf32 = allowed


class Switch(NamedTuple):
    """A setting of the process."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    wanted: Any


def _attribute(holder: Any, name: str, wanted: Any) -> Switch:
    return Switch(lambda: getattr(holder, name), lambda value: setattr(holder, name, value), wanted)


def switches(tf32: bool) -> list[Switch]:
    """The switches of this PyTorch, with what decoding wants."""
    matmul, cuda = torch.backends.cuda.matmul, torch.backends.cuda
    sums = ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction")
    names = [f"allow_{name}" for name in (*sums, "fp16_accumulation")]
    return [
        # Sums in half precision would round by how a product is split.
        *(_attribute(matmul, name, False) for name in names if hasattr(matmul, name)),
        # PyTorch prefers cuDNN's attention on Hopper in half precision. That prepares a plan for every shape, and
        # every step has one key more.
        Switch(torch.backends.cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, False),
        Switch(tf32_allowed, set_tf32, tf32),
    ]


class _Held:
    """The switches, for all threads: the first that decodes sets them, the last puts them back.

    TF32 is one switch of the process. So a thread that wants it otherwise waits until the others have ended.

    Attributes:
        holders: who decodes: the thread, and whether products may round to TF32 there.
    """

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.holders: list[tuple[int, bool]] = []
        self.before: list[tuple[Switch, Any]] = []

    def _free(self, thread: int, tf32: bool) -> bool:
        """Tells whether no other thread needs TF32 otherwise.

        Raises:
            RuntimeError: this thread does, which would wait for itself.
        """
        others = {holder for holder, wanted in self.holders if wanted != tf32}
        if thread in others:
            raise RuntimeError(
                "a generator with TF32 and one without decode within each other; build both under the same "
                "torch.backends.cuda.matmul.allow_tf32"
            )
        return not others

    @contextmanager
    def set(self, tf32: bool) -> Iterator[None]:
        holder = threading.get_ident(), tf32
        with self.lock:
            self.lock.wait_for(lambda: self._free(*holder))
            self.holders.append(holder)
        try:
            with self.lock:
                for switch in switches(tf32):
                    if (value := switch.read()) != switch.wanted:
                        switch.write(switch.wanted)
                        self.before.append((switch, value))
            yield
        finally:
            with self.lock:
                self.holders.remove(holder)
                if not self.holders:
                    for switch, value in reversed(self.before):
                        switch.write(value)
                    self.before.clear()
                self.lock.notify_all()


_held = _Held()


_AS_IT_IS = nullcontext()


def decoding_on(
    device: torch.device, streams: Streams, tf32: bool = False
) -> AbstractContextManager[None]:
    """Within this a generator decodes on a device, whatever the program around it has set.

    Args:
        device: becomes the current one of this thread.
        streams: of the generator.
        tf32: products of fp32 may round to TF32.
    """
    autocast = torch.is_autocast_enabled(device.type)
    # Another default device is a mode on this stack; to ask for the device takes ten times as long.
    if device.type == "cpu" and not autocast and not torch._C._len_torch_function_stack():
        return _AS_IT_IS
    return _conditions(device, streams, tf32, autocast)


@contextmanager
def _conditions(
    device: torch.device, streams: Streams, tf32: bool, autocast: bool
) -> Iterator[None]:
    with ExitStack() as stack:
        if torch.get_default_device() != HOST:
            stack.enter_context(HOST)
        if autocast:  # models compute in the precision of their weights
            stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.enter_context(streams.used())
            stack.enter_context(_held.set(tf32))
        yield


def streams_of(thing: Any) -> Streams:
    """The streams of a verifier, which one generator at a time uses."""
    attributes = vars(thing)
    streams: Streams | None = attributes.get("_streams")
    return streams or attributes.setdefault("_streams", Streams())
