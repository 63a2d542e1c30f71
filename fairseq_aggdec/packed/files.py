"""Files in a folder of packed weights: a checkpoint, tensors in one mapped file, and what tells damage."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels.huge_pages import advise
from fairseq_aggdec.kernels.library import kernels

CHECKPOINT, WEIGHTS = "checkpoint.pt", "packed.safetensors"
VERSION = 1  # of what is in these files
ALIGNED, BEGIN = 64, 4096  # bytes: every tensor begins at a multiple, the first at one of a page
PIECE = 1 << 22  # words of 4 bytes whose sum is taken at once
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
        for tensor in tensors.values():
            file.write(bytes(-(file.tell() - 8 - len(header)) % ALIGNED))
            tensor.contiguous().view(torch.uint8).numpy().tofile(file)
        file.flush()
        os.fsync(file.fileno())


def mapped(path: Path) -> Tensor:
    """(N,) the bytes of a file: processes share them until one writes to its own."""
    size = path.stat().st_size
    storage = torch.UntypedStorage.from_file(str(path), False, size)
    return torch.tensor([], dtype=torch.uint8, device="cpu").set_(storage, 0, (size,))  # type: ignore[call-overload]


def read_tensors(whole: Tensor) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a file of :func:`write_tensors`, which stay where they are, and what is said about them.

    Raises:
        ValueError, LookupError, TypeError, RuntimeError: it is damaged.
    """
    size = int.from_bytes(bytes(whole[:8].tolist()), "little")
    if size > len(whole) - 8:
        raise ValueError("its header is cut")
    entries = json.loads(bytes(whole[8 : 8 + size].numpy()))
    about, data = entries.pop("__metadata__"), whole[8 + size :]
    kinds = {name: kind for kind, name in TYPES.items()}
    found = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        if not name.startswith("gap."):
            found[name] = data[begin:end].view(kinds[entry["dtype"]]).view(entry["shape"])
    return found, about


def _sums(whole: Tensor) -> Iterator[int]:
    """Sums each piece of a file, by a sum that every changed word changes; its pages are given back."""
    words = whole[: len(whole) // 4 * 4].view(torch.int32)
    library, free = kernels(), advise()
    for begin in range(0, len(words), PIECE):
        part = words[begin : begin + PIECE]
        if library is not None:
            yield library.aggdec_checksum(part.data_ptr(), len(part))
        else:
            odd = 2 * torch.arange(len(part), device="cpu") + 1
            yield int(((part.long() & 0xFFFFFFFF) * odd).sum())
        if free is not None and part.data_ptr() % mmap.PAGESIZE == 0:
            free(part.data_ptr(), part.nbytes // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_DONTNEED)


def stamp(path: Path) -> tuple[int, ...]:
    """Place on the disk, size and times of change of a file: whoever writes to it or replaces it changes one."""
    status = path.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


def digest(path: Path) -> str:
    """Digest of a file's bytes, at the speed of memory: against accidents, not against a forger."""
    whole = hashlib.sha256()
    if path.stat().st_size:
        numbers = mapped(path)
        for one in _sums(numbers):
            whole.update(one.to_bytes(8, "little", signed=True))
        whole.update(bytes(numbers[len(numbers) // 4 * 4 :].tolist()))
    whole.update(str(path.stat().st_size).encode())
    return whole.hexdigest()
