"""Between host and device: numbers of the host sent without waiting, numbers of the device read once.

On a GPU every copy from memory that is not pinned, and every look at a number, waits for all work given before. So
small tables of indices go through pinned memory, and what the host has to know as a batch begins is read in one
transfer, before any layer has been launched.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

HOST = torch.device("cpu")  # PyTorch's default may be another


def int64_array(values: list[int]) -> array[int]:
    """The values as 64-bit numbers in memory of the host, for the compiled library."""
    return array("q", values)


def in_int64(values: list[int]) -> Tensor:
    """(N,) on the host: ``torch.tensor(values)`` in a tenth of the time; N is not 0."""
    return torch.frombuffer(int64_array(values), dtype=torch.int64)


def in_fp32(values: list[float]) -> Tensor:
    """(N,) on the host, whatever PyTorch's default type is; N is not 0."""
    return torch.frombuffer(array("f", values), dtype=torch.float32)


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.tensor(values, device=device)`` that does not wait for the device."""
    if type(values) is list and values and type(values[0]) is int and dtype in (None, torch.int64):
        # A list of whole numbers, as most are that every iteration sends: in a third of the time.
        return sent(in_int64(values), device)
    return sent(torch.tensor(values, dtype=dtype), device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device, which need not be done with what it was given before."""
    if device.type != "cuda":
        return tensor.to(device)
    # PyTorch keeps pinned memory for the next copy and gives it out again when this one is done.
    return tensor.pin_memory().to(device, non_blocking=True)


def rows_at(table: Tensor, places: Sequence[int]) -> Tensor:
    """Rows of a table (N, C) at host numbers: (B, C); a view if there is one place."""
    if len(places) == 1:
        return table[places[0] : places[0] + 1]
    return table[to_device(places, table.device)]


def send_into(target: Tensor, values: Any) -> None:
    """Writes numbers of the host to a tensor of the device that stays where it is, without waiting."""
    source = torch.as_tensor(values, dtype=target.dtype)
    if target.device.type == "cuda":
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)


def read(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device on the host, which waits once: one copy for each type of numbers."""
    types = list(dict.fromkeys(tensor.dtype for tensor in tensors))
    of_type = [[tensor for tensor in tensors if tensor.dtype is dtype] for dtype in types]
    flat = [
        torch.cat([t.flatten() for t in group]) if len(group) > 1 else group[0] for group in of_type
    ]
    # The last copy waits, for those before it, too.
    copies = [*(part.to("cpu", non_blocking=True) for part in flat[:-1]), flat[-1].cpu()]
    parts = {
        dtype: iter(copy.flatten().split([tensor.numel() for tensor in group]))
        for dtype, group, copy in zip(types, of_type, copies, strict=True)
    }
    return [next(parts[tensor.dtype]).view(tensor.shape) for tensor in tensors]


class PendingCopy:
    """A copy of numbers (N,) of a device to the host; the host waits for it in :meth:`read` only."""

    def __init__(self, numbers: Tensor):
        self.numbers = numbers.to("cpu", non_blocking=True, copy=True)
        self.there = None
        if numbers.device.type == "cuda":
            # Of the device that the copy comes from, which need not be the current one.
            self.there = torch.cuda.current_stream(numbers.device).record_event()

    def read(self) -> list[int]:
        if self.there is not None and not self.there.query():
            self.there.synchronize()
        values: list[int] = self.numbers.tolist()
        return values


class Watch(Protocol):
    """Object that wants to know whether numbers on the device have changed, see
    :class:`~fairseq_aggdec.engine.plain.watch.ModelWatch`."""

    def question(self) -> Tensor | None:
        """(N,) numbers on the device; None where the host knows the answer."""

    def hear(self, numbers: Tensor) -> None:
        """Takes these numbers, on the host."""

    def answer(self, changed: bool) -> None:
        """Says whether there was a change."""


# Attribute of a tensor: its version, and its numbers of that version on the host.
HOST_COPY = "aggdec_host_copy"


def begin(tensors: Sequence[Tensor], watches: Sequence[Watch]) -> None:
    """Reads what a batch's decoding needs to know, before it begins.

    Args:
        tensors: of the batch: source tokens first, int64. :func:`on_host` knows them then. Frames of speech, which are
            no whole numbers, are left where they are.
        watches: get what they ask for.
    """
    if tensors[0].device.type != "cuda":
        return
    tensors = [tensor for tensor in tensors if not tensor.is_floating_point()]
    questions = [
        (watch, question) for watch in watches if (question := watch.question()) is not None
    ]
    wanted = [*tensors, *(question for _, question in questions)]
    answers = read(wanted) if wanted else []
    for (watch, _), numbers in zip(questions, answers[len(tensors) :], strict=True):
        watch.hear(numbers)
    for tensor, host in zip(tensors, answers, strict=False):
        if not tensor.is_inference():  # which has no version
            setattr(tensor, HOST_COPY, (tensor._version, host))


def on_host(tensor: Tensor) -> Tensor:
    """A tensor on the host; without a transfer where :func:`begin` has read it."""
    known: tuple[int, Tensor] | None = getattr(tensor, HOST_COPY, None)
    if known is not None and known[0] == tensor._version:
        return known[1]
    return tensor.cpu()
