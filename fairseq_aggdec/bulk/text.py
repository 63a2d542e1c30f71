"""Texts of any size, a sentence a line: plain or compressed by gzip, and cut into shards of lines."""

from __future__ import annotations

import gzip
import hashlib
import logging
import zlib
from array import array
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_aggdec.jobs.job import BulkError

logger = logging.getLogger(__name__)

# Bytes: a file without ends of lines is no text, and must not fill the memory.
LONGEST_LINE = 1 << 20
GZIP = ".gz"
# How compressed files begin -> what unpacks them.
MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
OTHER_ARCHIVES = {".7z", ".bz2", ".lz4", ".xz", ".zip", ".zst"}  # which are not written
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)  # of a file that is cut or none of gzip
CHUNK, DIGESTED = 1 << 20, 1 << 16  # bytes that are copied, and digested, at once


def compressed_as(start: bytes) -> str | None:
    """The program that has compressed a file that begins so; None: none that is known."""
    return next((name for magic, name in MAGIC.items() if start.startswith(magic)), None)


def open_read(path: Path) -> Any:
    """A file with the content of a text, uncompressed."""
    return gzip.open(path) if path.suffix == GZIP else path.open("rb")


def open_write(file: BinaryIO, path: Path) -> Any:
    """A context manager to write to ``file``, compressed as the name of ``path`` says, without a time in the bytes;
    ``file`` stays open."""
    gzipped = path.suffix == GZIP
    return gzip.GzipFile("", "wb", fileobj=file, mtime=0) if gzipped else nullcontext(file)


@dataclass
class Index:
    """Index of where the shards of a text begin.

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
    """Reads a text once, line by line. A byte order mark in front belongs to no line.

    Raises:
        BulkError: it is no text, or damaged; the message names the line.
    """
    index, whole = Index(shard_size), hashlib.sha256()
    for offset, line in _checked_lines(path):
        if index.lines % shard_size == 0:
            index.offsets.append(offset)
            index.checks.append(0)
        index.checks[-1] = zlib.crc32(line, index.checks[-1])
        index.lines += 1
        whole.update(line)
    index.sha256 = whole.hexdigest()
    return index


def _checked_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their ends, and the byte at which each begins."""
    number, offset = 0, 0
    try:
        if path.suffix == GZIP and not path.stat().st_size:
            raise EOFError("it is empty, even an empty text is some bytes of gzip")
        with open_read(path) as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise BulkError(f"{path}, line {number} has more than {LONGEST_LINE} bytes")
                if number == 1 and line.startswith(BOM_UTF8):
                    logger.info("%s: the byte order mark is not read as part of line 1", path)
                    offset, line = len(BOM_UTF8), line.removeprefix(BOM_UTF8)
                line.decode()
                if line:  # not a mark and nothing else
                    yield offset, line
                offset += len(line)
    except UnicodeDecodeError as error:
        raise BulkError(_no_utf8(path, number, offset, error)) from None
    except DAMAGED as error:
        raise BulkError(f"{path} is damaged behind line {number}: {error}") from None


def _no_utf8(path: Path, number: int, offset: int, error: UnicodeDecodeError) -> str:
    if number == 1 and (archive := compressed_as(error.object)):
        how = f"name it *{GZIP}" if archive == "gzip" else f"{archive} -dc {path} > TEXT unpacks it"
        return f"{path} is compressed by {archive}: {how}"
    place = f"byte {offset + error.start} of the text is 0x{error.object[error.start]:02x}"
    said = f"{path}, line {number} is not UTF-8: {place}, {error.reason}"
    if offset == 0 and error.object.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        said += "; it begins as UTF-16 does, which iconv -f UTF-16 -t UTF-8 converts"
    return said


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
        try:
            self._go_to(self.index.offsets[shard])
            lines = [self.file.readline() for _ in range(self.index.count(shard))]
        except DAMAGED:
            raise self._changed() from None
        self.offset += sum(map(len, lines))
        check = 0
        for line in lines:
            check = zlib.crc32(line, check)
        if check != self.index.checks[shard] or not all(lines):
            raise self._changed()
        return [line.decode().removesuffix("\n") for line in lines]

    def _changed(self) -> BulkError:
        return BulkError(f"{self.path} was changed while it was translated: begin anew")

    def _go_to(self, offset: int) -> None:
        if self.path.suffix != GZIP:
            self.file.seek(offset)
        else:
            if offset < self.offset:
                self.file.close()
                self.file, self.offset = open_read(self.path), 0
            while (left := offset - self.offset) > 0:
                if not (passed := self.file.read(min(left, CHUNK))):
                    raise self._changed()
                self.offset += len(passed)
        self.offset = offset

    def close(self) -> None:
        self.file.close()


def content_digest(path: Path) -> str:
    """SHA-256 of what a file holds, uncompressed: another version of a compression library gives other bytes.

    Raises:
        EOFError, OSError, zlib.error: it is not whole.
    """
    whole = hashlib.sha256()
    with open_read(path) as file:
        while chunk := file.read(DIGESTED):
            whole.update(chunk)
    return whole.hexdigest()
