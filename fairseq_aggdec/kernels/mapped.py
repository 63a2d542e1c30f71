"""Pages of files in memory: weights that are packed need not stay in memory as the file has them, too.

A mapped file takes memory only where it was read, and the system reads it again when somebody wants it.
"""

import ctypes
import fcntl
import functools
import mmap
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from torch import Tensor

from fairseq_aggdec.kernels.huge_pages import advise

MAPPINGS = Path("/proc/self/smaps")
PLACES = Path("/proc/self/maps")  # no counts of pages, so it is read in a fraction of the time
PRIVATE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ [1-9]", re.MULTILINE)  # of a file
# Where mapped files stand whose pages may be given back: (first byte, behind the last).
_clean: ContextVar[tuple[tuple[int, int], ...]] = ContextVar("clean", default=())


def mappings(paths: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[int, int]]:
    """Finds where files are mapped, if no number was changed there since; nowhere where the system is silent."""
    wanted = {os.path.realpath(path) for path in paths}
    for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", _said(MAPPINGS), flags=re.MULTILINE)[1:]:
        first, *rest = entry.split("\n")
        where, _, _, _, _, *path = first.split(maxsplit=5)
        if wanted.isdisjoint(path):
            continue
        if any(re.match(r"Anonymous: +0 kB", one) for one in rest):
            begin, end = (int(one, 16) for one in where.split("-"))
            yield begin, end


def _said(path: Path) -> str:
    """Reads a file of the system; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@contextmanager
def read_once(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Let :func:`give_back` free pages of these mapped files; nobody may write to them meanwhile.

    At the end all their pages are freed, and what the process does not use any more.
    """
    token = _clean.set(tuple(mappings(paths)))
    try:
        yield
    finally:
        there = bool(_clean.get())
        _clean.reset(token)
    call = advise()
    if there and call is not None:
        for begin, end in mappings(paths):
            call(begin, end - begin, mmap.MADV_DONTNEED)
        trim()


def trim() -> None:
    """Gives freed memory back to the system, where the C library can."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def give_back(tensor: Tensor) -> None:
    """Frees the whole pages of a tensor that has been read, if it stands in a file of :func:`read_once`."""
    if not _clean.get() or tensor.device.type != "cpu":
        return
    page, madvise = mmap.PAGESIZE, advise()
    begin = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    if madvise is None or begin >= end or not tensor.is_contiguous():
        return
    if any(first <= begin and end <= last for first, last in _clean.get()):
        madvise(begin, end - begin, mmap.MADV_DONTNEED)


class Untouched:
    """Asks the system whether anything was written to memory in which files are mapped (Linux 6.7 and newer).

    A private mapping shows the file until somebody writes: those pages are then no longer the file's. To ask costs
    microseconds where few pages were read.

    Args:
        tensors: of a model; those in mapped files without a write so far are watched.

    Attributes:
        watched: positions in ``tensors`` of those that are watched.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.ranges: list[tuple[int, int]] = []
        self.watched: set[int] = set()
        if not _can_scan():
            return
        places = sorted((x.data_ptr(), x.nbytes, number) for number, x in enumerate(tensors))
        for found in PRIVATE.findall(_said(PLACES)):
            begin, end = (int(one, 16) for one in found)
            within = places[bisect_left(places, (begin,)) : bisect_left(places, (end,))]
            inside = {number for at, size, number in within if size and at + size <= end}
            if inside and not _written(begin, end):
                self.watched |= inside
                self.ranges.append((begin, end))
        # Kept: another file that is mapped there later is not theirs.
        self.kept = [tensors[number] for number in self.watched]

    def written(self) -> bool:
        """Tells whether a page was written to."""
        return any(_written(begin, end) for begin, end in self.ranges)


FILE, PRESENT, SWAPPED = 4, 8, 16  # categories of pages, as Linux numbers them
SCAN = 0xC0606610  # PAGEMAP_SCAN


def _written(begin: int, end: int) -> bool:
    """Tells whether a page in these addresses is no longer the file's."""
    for wanted, unwanted in ((PRESENT, FILE), (SWAPPED, 0)):
        written = (ctypes.c_uint64 * 3)()
        scan = (ctypes.c_uint64 * 12)(96, 0, begin, end, 0, ctypes.addressof(written), 1, 1)
        scan[8], scan[9] = unwanted, wanted | unwanted
        if fcntl.ioctl(_pagemap(os.getpid()), SCAN, scan):
            return True
    return False


@functools.cache
def _pagemap(process: int) -> int:
    """Opened anew by each process: a file from before a fork tells of the parent's memory."""
    return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def _can_scan() -> bool:
    """Tells whether the system tells, tried on memory that was written and on memory of a file that was not."""
    try:
        with open(__file__, "rb") as file:
            probe = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE)
        at, size = ctypes.addressof(ctypes.c_char.from_buffer(probe)), mmap.PAGESIZE
        before = probe[0], _written(at, at + size)
        probe[0] = before[0]
        return not before[1] and _written(at, at + size)
    except (OSError, ValueError, AttributeError):
        return False
