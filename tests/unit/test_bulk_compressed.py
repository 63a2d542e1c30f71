"""Compressed files: whole to their last byte, or refused."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from fairseq_aggdec.bulk.compressed import DamagedError, open_read, open_write
from fairseq_aggdec.bulk.text import Text, make_index
from fairseq_aggdec.jobs.job import BulkError

PARTS = [b"one\ntwo\n", b"three\n" * 50, b"", b"four\n"]
SKIPPED = struct.pack("<II", 0x184D2A50, 4) + b"meta"  # a frame of zstandard without content


def streamed(part: bytes) -> bytes:
    """Without the size of the content in front, as ``zstd`` compresses a pipe."""
    frame = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return frame.compress(part) + frame.flush()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "a.gz": gzip.compress,
    "a.zst": zstandard.compress,
    "b.zst": streamed,
}


def read(path: Path) -> bytes:
    with open_read(path) as file:
        return file.read()


@pytest.mark.parametrize("name", PACK)
def test_cut_anywhere(name: str, tmp_path: Path) -> None:
    """Only between two frames a file can be cut without a trace."""
    frames = [PACK[name](part) for part in PARTS]
    whole, path = b"".join(frames), tmp_path / name
    ends = {len(b"".join(frames[:count])): count for count in range(1, 5)}
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        if length in ends:
            assert read(path) == b"".join(PARTS[: ends[length]])
        else:
            with pytest.raises(DamagedError, match="cut" if length else "empty"):
                read(path)


@pytest.mark.parametrize("name", PACK)
@pytest.mark.parametrize("more", [b"\0", b"\0" * 2048, b"garbage", b"\x1f", b"\x28\xb5"])
def test_what_comes_behind_the_end(name: str, more: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(PACK[name](PARTS[0]) + more)
    if name == "a.gz" and not more.strip(b"\0"):
        assert read(path) == PARTS[0]
        path.write_bytes(path.read_bytes() + gzip.compress(PARTS[1]) + more)
        assert read(path) == PARTS[0] + PARTS[1]
        more += b"garbage"
        path.write_bytes(gzip.compress(PARTS[0]) + more)
    with pytest.raises(DamagedError):
        read(path)


def test_zeros_are_no_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(b"\0" * 512)
    with pytest.raises(DamagedError, match="it is no gzip"):
        read(path)


def test_frames_without_content(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(b"".join(SKIPPED + streamed(part) for part in PARTS) + SKIPPED)
    assert read(path) == b"".join(PARTS)


def test_changed_bytes_of_gzip(tmp_path: Path) -> None:
    """Its check sum and length find every change of the content."""
    whole, path = gzip.compress(PARTS[1], mtime=0), tmp_path / "a.gz"
    for position in range(10, len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with pytest.raises(DamagedError):
            read(path)


@pytest.mark.parametrize("name", ["out", "out.gz", "out.zst"])
def test_what_is_written_can_be_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with path.open("wb") as file, open_write(file, path) as out:
        for part in PARTS:
            out.write(part)
    assert read(path) == b"".join(PARTS)


def test_much_out_of_little(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(zstandard.compress(b"\n" * 300_000))
    assert make_index(path, 1000).lines == 300_000


@pytest.mark.parametrize("name", ["in.gz", "in.zst"])
def test_an_input_that_is_cut_later(name: str, tmp_path: Path) -> None:
    """Between the first reading and a shard."""
    path, pack = tmp_path / name, PACK[f"a{Path(name).suffix}"]
    whole = pack(b"".join(b"line %d of a text\n" % number for number in range(5000)))
    path.write_bytes(whole)
    index = make_index(path, 100)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BulkError, match="was changed while"):
        Text(path, index).lines(49)
    path.write_bytes(pack(b"short\n"))
    with pytest.raises(BulkError, match="was changed while"):
        Text(path, index).lines(49)
