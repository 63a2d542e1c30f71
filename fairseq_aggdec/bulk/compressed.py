"""Files by the end of their name: ``.gz`` and ``.zst`` are compressed, others are as they are.

Decompression libraries take the end of a file for the end of its content. Here a file is read to the end of its last
frame, or refused: a download that was cut off must not pass for a shorter text.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast

GZIP, ZSTANDARD = ".gz", ".zst"
ENDINGS = (GZIP, ZSTANDARD)
# Bytes that are decompressed at once. A KiB of zstandard can hold 32 MiB, and the memory must stay small.
CHUNK = 1 << 10


class DamagedError(Exception):
    """A compressed file is cut, or holds something else; the message says which, without the name of the file."""


def open_read(path: Path) -> BinaryIO:
    """The uncompressed content. Reading raises :class:`DamagedError`.

    Raises:
        ModuleNotFoundError: ``.zst`` without the package zstandard.
    """
    if path.suffix == GZIP:
        frames: io.RawIOBase = _Frames(path, "gzip", lambda: zlib.decompressobj(31), zlib.error)
    elif path.suffix == ZSTANDARD:
        import zstandard

        decompressor = zstandard.ZstdDecompressor()
        frames = _Frames(path, "zstandard", decompressor.decompressobj, zstandard.ZstdError)
    else:
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(frames))


def open_write(file: BinaryIO, path: Path) -> Any:
    """A context manager to write to ``file``, compressed as the name of ``path`` says, without a time in the bytes;
    ``file`` stays open."""
    if path.suffix == GZIP:
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if path.suffix == ZSTANDARD:
        import zstandard

        return zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False)
    return nullcontext(file)


class _Frames(io.RawIOBase):
    """The content of a file of frames (zstandard) or members (gzip), one behind the other.

    Args:
        path: of the file.
        kind: for messages.
        begin: makes a decompressor of one frame, with ``decompress``, ``eof`` and ``unused_data``.
        error: that it raises.
    """

    def __init__(self, path: Path, kind: str, begin: Callable[[], Any], error: type[Exception]):
        self.file, self.kind, self.begin, self.error = path.open("rb"), kind, begin, error
        self.frame: Any = None  # that is being decompressed; None: between two frames
        self.frames = 0  # how many were begun
        self.packed, self.content = b"", memoryview(b"")  # what is read and not yet used

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.content:
            self.packed = self.packed or self.file.read(CHUNK)
            if not self.packed:
                self._check_end()
                return 0
            self._decompress()
        count = min(len(buffer), len(self.content))
        buffer[:count], self.content = self.content[:count], self.content[count:]
        return count

    def _decompress(self) -> None:
        if self.frame is None:
            if self.frames and self.kind == "gzip":
                # Blocks that are filled up; gzip passes over it.
                self.packed = self.packed.lstrip(b"\0")
                if not self.packed:
                    return
            self.frame = self.begin()
            self.frames += 1
        try:
            self.content = memoryview(self.frame.decompress(self.packed))
        except self.error as error:
            behind = f" behind the end of frame {self.frames - 1}" if self.frames > 1 else ""
            raise DamagedError(f"it is no {self.kind}{behind}: {error}") from None
        self.packed = b""
        if self.frame.eof:
            self.packed, self.frame = self.frame.unused_data, None

    def _check_end(self) -> None:
        if self.frames == 0:
            raise DamagedError(f"it is empty, even an empty text is some bytes of {self.kind}")
        if self.frame is not None:
            raise DamagedError(f"it is cut, the end of its {self.kind} is missing")

    def close(self) -> None:
        self.file.close()
        super().close()
