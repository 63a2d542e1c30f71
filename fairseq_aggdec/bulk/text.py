"""Texts of any size, a sentence a line: read as they are, in gzip or zstandard, and cut into shards of lines."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import sys
import uuid
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from fairseq_aggdec.jobs.job import BulkError

STDIN = "-"
LONGEST_LINE = (
    1 << 20
)  # bytes: a file without ends of lines is no text, and must not fill the memory
CHUNK = 1 << 20


def open_read(path: Path) -> BinaryIO:
    """The uncompressed content, by the end of the name: ``.gz``, ``.zst``, else as it is.

    Raises:
        ModuleNotFoundError: ``.zst`` without the package zstandard.
    """
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".zst":
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(
            path.open("rb"), read_across_frames=True
        )
        return cast(BinaryIO, io.BufferedReader(reader))
    return path.open("rb")


def open_write(file: BinaryIO, path: Path) -> Any:
    """A context manager to write to ``file``, compressed as the name of ``path`` says, without a time in the bytes."""
    if path.suffix == ".gz":
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if path.suffix == ".zst":
        import zstandard

        return zstandard.ZstdCompressor().stream_writer(file, closefd=False)
    return _Open(file)


class _Open:
    """Leaves a file open at the end of a ``with``."""

    def __init__(self, file: BinaryIO):
        self.file = file

    def __enter__(self) -> BinaryIO:
        return self.file

    def __exit__(self, *_: object) -> None:
        self.file.flush()


@dataclass
class Index:
    """Where the shards of a text begin.

    Attributes:
        shard_size: lines of each but the last.
        lines: of the whole text.
        sha256: of the uncompressed text.
        offsets: byte at which each shard begins. checks: CRC-32 of its bytes.
    """

    shard_size: int
    lines: int = 0
    sha256: str = ""
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    checks: array[int] = field(default_factory=lambda: array("L"))

    @property
    def shards(self) -> int:
        return len(self.offsets)

    def count(self, shard: int) -> int:
        """Lines of a shard."""
        return min(self.shard_size, self.lines - shard * self.shard_size)


def make_index(path: Path, shard_size: int) -> Index:
    """Reads a text once, line by line.

    Raises:
        BulkError: it is no text, or damaged; the message names the line.
    """
    index, whole, offset = Index(shard_size), hashlib.sha256(), 0
    for line in _checked_lines(path):
        if index.lines % shard_size == 0:
            index.offsets.append(offset)
            index.checks.append(0)
        index.checks[-1] = zlib.crc32(line, index.checks[-1])
        index.lines += 1
        offset += len(line)
        whole.update(line)
    index.sha256 = whole.hexdigest()
    return index


def _checked_lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with open_read(path) as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise BulkError(f"{path}, line {number} has more than {LONGEST_LINE} bytes")
                line.decode()
                yield line
    except UnicodeDecodeError as error:
        raise BulkError(f"{path}, line {number} is not UTF-8: {error.reason}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BulkError(f"{path} is damaged behind line {number}: {error}") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # of a package that need not be there
            raise
        raise BulkError(f"{path} is damaged behind line {number}: {error}") from None


class Text:
    """Reads the shards of a text, best in their order: what is compressed is read anew to go back.

    Args:
        path: of the text. index: of it.
    """

    def __init__(self, path: Path, index: Index):
        self.path, self.index = path, index
        self.file, self.offset = open_read(path), 0

    def lines(self, shard: int) -> list[str]:
        """Lines of a shard, without their ends.

        Raises:
            BulkError: the text has changed since it was indexed.
        """
        self._go_to(self.index.offsets[shard])
        lines = [self.file.readline() for _ in range(self.index.count(shard))]
        self.offset += sum(map(len, lines))
        check = 0
        for line in lines:
            check = zlib.crc32(line, check)
        if check != self.index.checks[shard]:
            raise BulkError(f"{self.path} was changed while it was translated: begin anew")
        return [line.decode().removesuffix("\n") for line in lines]

    def _go_to(self, offset: int) -> None:
        if self.path.suffix not in (".gz", ".zst"):
            self.file.seek(offset)
        else:
            if offset < self.offset:
                self.file.close()
                self.file, self.offset = open_read(self.path), 0
            while (left := offset - self.offset) > 0:
                self.offset += len(self.file.read(min(left, CHUNK)))
        self.offset = offset

    def close(self) -> None:
        self.file.close()


def keep_stdin(path: Path) -> None:
    """Puts standard input into a file: it is read from many places, and again after a kill.

    Raises:
        BulkError: the file is there already, from a run before, and holds something else.
    """
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, CHUNK)
        if path.exists() and digest(path) != digest(partial):
            raise BulkError(f"standard input is not what it was when {path} was written")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
