"""Tensors of a kernel on pages of their own, which the emulator closes until the kernel has waited for earlier ones."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators

PAGE, WORD = mmap.PAGESIZE, 16


class Pages(ctypes.Structure):
    """As in ``emulator.cpp``; without a name they are behind a tensor and stay closed."""

    _fields_ = (
        ("begin", ctypes.c_longlong),
        ("bytes", ctypes.c_longlong),
        ("before", ctypes.c_longlong),
        ("name", ctypes.c_char_p),
    )


def _bytes(tensor: Tensor) -> Tensor:
    """All of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class OnPages:
    """Copies of a kernel's tensors, storage by storage. Each ends where its last page ends, and the next one is closed.

    Args:
        name: of the kernel.
        given: its arguments.
        readable: parameters that it may read before the wait.

    Attributes:
        given: the arguments, with the copies in place of the tensors.
        pages, count: of all copies.
    """

    def __init__(self, name: str, given: Sequence[Any], readable: Collection[str]):
        self.given, self.copies = list(given), dict[int, tuple[Tensor, Tensor]]()
        self.written, pages = set[int](), dict[int, Pages]()
        for place, (word, written) in enumerate(operators.SIGNATURES[name].parameters):
            value = given[place]
            if not isinstance(value, Tensor) or not value.untyped_storage().nbytes():
                continue
            key = value.untyped_storage().data_ptr()
            if key not in self.copies:
                self.copies[key], pages[key] = _copied(value)
            own, part = pages[key], self.copies[key][1].untyped_storage()
            shape = value.storage_offset(), value.size(), value.stride()
            self.given[place] = torch.empty(0, dtype=value.dtype).set_(part, *shape)
            own.name = b", ".join(filter(None, (own.name, word.encode())))
            own.before |= mmap.PROT_READ if word in readable else 0
            self.written |= {key} if written else set()
        behind = [Pages(own.begin + own.bytes, PAGE, 0, None) for own in pages.values()]
        self.count = 2 * len(behind)
        self.pages = (Pages * self.count)(*pages.values(), *behind)

    def put_back(self) -> None:
        """Gives the tensors what the kernel has written."""
        for key in self.written:
            tensor, copy = self.copies[key]
            tensor.copy_(copy)


def _copied(tensor: Tensor) -> tuple[tuple[Tensor, Tensor], Pages]:
    """The bytes of a tensor's storage and those of a copy, and where that is."""
    own = _bytes(tensor)
    used = -(-len(own) // WORD) * WORD
    size = -(-used // PAGE) * PAGE
    room = mmap.mmap(-1, size + PAGE)
    copy = torch.frombuffer(room, dtype=torch.uint8, offset=size - used, count=len(own))
    copy.copy_(own)
    return (own, copy), Pages(copy.data_ptr() - (size - used), size, 0, None)
