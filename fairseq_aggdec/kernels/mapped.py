"""Pages of files in memory: weights that are packed need not stay in memory as the file has them, too.

A mapped file takes memory only where it was read, and the system reads it again when somebody wants it.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from torch import Tensor

from fairseq_aggdec.kernels.huge_pages import advise

MAPPINGS = Path("/proc/self/smaps")
# Where mapped files stand whose pages may be given back: (first byte, behind the last).
_clean: ContextVar[tuple[tuple[int, int], ...]] = ContextVar("clean", default=())


def _mappings(paths: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[int, int]]:
    """Where the files are mapped, if no number was changed there since; nowhere where the system does not say."""
    wanted = {os.path.realpath(path) for path in paths}
    try:
        said = MAPPINGS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", said, flags=re.MULTILINE)[1:]:
        first, *rest = entry.split("\n")
        where, _, _, _, _, *path = first.split(maxsplit=5)
        if path and path[0] in wanted and any(re.match(r"Anonymous: +0 kB", one) for one in rest):
            begin, end = (int(one, 16) for one in where.split("-"))
            yield begin, end


@contextmanager
def read_once(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """While it lasts, :func:`give_back` gives pages of these mapped files back; nobody may write to them meanwhile."""
    token = _clean.set(tuple(_mappings(paths)))
    try:
        yield
    finally:
        _clean.reset(token)


def give_back(tensor: Tensor) -> None:
    """Frees the whole pages of a tensor that has been read, if it stands in a file of :func:`read_once`."""
    if not _clean.get() or tensor.device.type != "cpu":
        return
    page, found = mmap.PAGESIZE, advise()
    begin = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    if found is None or begin >= end or not tensor.is_contiguous():
        return
    if any(first <= begin and end <= last for first, last in _clean.get()):
        found(begin, end - begin, mmap.MADV_DONTNEED)
