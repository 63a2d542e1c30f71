"""Files in a folder of packed weights: a checkpoint, tensors in one mapped file, and what tells damage."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.stored.held_files import HeldFile
from fairseq_aggdec.stored.progress import passing

CHECKPOINT, WEIGHTS = "checkpoint.pt", "packed.safetensors"
VERSION = 2  # of what is in these files
ALIGNED, BEGIN = 64, 4096  # bytes: every tensor begins at a multiple, the first at one of a page
PIECE = 1 << 20  # words of 4 bytes whose sum is taken at once
MOST_DIMENSIONS = 8
TYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.uint8: "U8",
}
Tensors = Mapping[str, Tensor]


def write_tensors(path: Path, tensors: Tensors, about: Mapping[str, str]) -> None:
    """Writes tensors in the format of safetensors, which allows no gaps: named bytes fill them up."""
    entries: dict[str, Any] = {"__metadata__": dict(about)}
    end = 0
    for number, (name, tensor) in enumerate(tensors.items()):
        if missing := -end % ALIGNED:
            entries[f"gap.{number}"] = {
                "dtype": "U8",
                "shape": [missing],
                "data_offsets": [end, end + missing],
            }
            end += missing
        where = [end, end + tensor.nbytes]
        entries[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": where,
        }
        end += tensor.nbytes
    header = json.dumps(entries).encode()
    header += b" " * (-(8 + len(header)) % BEGIN)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in passing(tensors.values(), f"writing {path.name}", " tensors"):
            file.write(bytes(-(file.tell() - 8 - len(header)) % ALIGNED))
            tensor.contiguous().view(torch.uint8).numpy().tofile(file)
        file.flush()
        os.fsync(file.fileno())


def mapped(file: HeldFile) -> Tensor:
    """(N,) the bytes of a file: processes share them until one writes to its own."""
    storage = torch.UntypedStorage.from_file(file.place, False, file.size)
    return torch.tensor([], dtype=torch.uint8, device="cpu").set_(storage, 0, (file.size,))  # type: ignore[call-overload]


class DamagedError(ValueError):
    """A file whose values do not hold together; the message is the reason."""


def sound(right: bool, reason: str) -> None:
    """Raises :class:`DamagedError` unless something is right."""
    if not right:
        raise DamagedError(reason)


def parsed(text: bytes) -> dict[str, Any]:
    """An object of JSON; no name in it stands twice.

    Raises:
        DamagedError: it is none.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        sound(len(values) == len(pairs), "a name stands twice")
        return values

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise DamagedError(error) from None
    sound(type(value) is dict, "it is no object")
    return value


def read_tensors(whole: Tensor) -> dict[str, Tensor]:
    """The tensors in a file of :func:`write_tensors`, which stay where they are, but for its gaps.

    Every number of the header is compared with the others and with the file: tensors follow each other from the first
    byte of the data to the last, each at a multiple of :data:`ALIGNED`, each as large as its dtype and shape say.

    Raises:
        DamagedError: they do not.
    """
    sound(len(whole) >= 8, "it has no header")
    size = int.from_bytes(bytes(whole[:8].tolist()), "little")
    sound(size <= len(whole) - 8, "its header is cut")
    sound((8 + size) % BEGIN == 0, "its header has another size")
    entries = parsed(bytes(whole[8 : 8 + size].numpy()))
    entries.pop("__metadata__", None)
    data, at, tensors = whole[8 + size :], 0, {}
    kinds = {name: kind for kind, name in TYPES.items()}
    for name, entry in entries.items():
        sound(
            type(entry) is dict and entry.keys() == {"dtype", "shape", "data_offsets"},
            "an entry has other parts",
        )
        where, shape, kind = entry["data_offsets"], entry["shape"], entry["dtype"]
        sound(type(kind) is str and kind in kinds, "a dtype is unknown")
        sound(is_numbers(where) and len(where) == 2 and is_numbers(shape), "a size is no number")
        (begin, end), dtype = where, kinds[kind]
        sound(begin == at <= end <= len(data), "tensors do not follow each other")
        sound(end - begin == math.prod(shape) * dtype.itemsize, "a shape has another size")
        at = end
        if name.startswith("gap."):
            continue
        sound(begin % ALIGNED == 0, "a tensor is not aligned")
        tensors[name] = data[begin:end].view(dtype).view(shape)
    sound(at == len(data), "its end is cut or too long")
    return tensors


def is_numbers(value: Any) -> bool:
    """Tells whether it is a list of whole numbers from 0 on, few enough for the dimensions of a tensor."""
    return (
        type(value) is list
        and len(value) <= MOST_DIMENSIONS
        and all(type(one) is int and 0 <= one < 2**63 for one in value)
    )


def _sum(words: Tensor) -> int:
    """Sums words (N,) int32, by a sum that every changed word changes."""
    library = kernels()
    if library is not None:
        return int(library.aggdec_checksum(words.data_ptr(), len(words)))
    odd = 2 * torch.arange(len(words), device="cpu") + 1
    return int(((words.long() & 0xFFFFFFFF) * odd).sum())


def digest(file: HeldFile) -> str:
    """Digest of a file's bytes, at the speed of memory: against accidents, not against a forger.

    It is read, not mapped: a file that somebody cuts meanwhile ends no process.
    """
    whole, size, at = hashlib.sha256(), file.size, 0
    room = torch.empty(min(PIECE, -(-size // 4)), dtype=torch.int32, device="cpu")
    content: Any = room.numpy()
    view = memoryview(content).cast("B") if len(room) else memoryview(b"")
    while at < size:
        count = _filled(file.handle, view[: size - at], at)
        whole.update(_sum(room[: count // 4]).to_bytes(8, "little", signed=True))
        whole.update(view[count // 4 * 4 : count])
        at += count
        if count < len(view):
            break
    whole.update(str(at).encode())
    return whole.hexdigest()


def _filled(handle: int, view: memoryview, at: int) -> int:
    """Reads a file from byte ``at`` on until a view is full or the file ends; returns how many bytes that were."""
    count = 0
    while count < len(view) and (read := os.preadv(handle, [view[count:]], at + count)):
        count += read
    return count
