"""Memory in huge pages: a step reads all weights once, and half of its time can go into looking up small pages.

Linux gives huge pages to those who ask, which PyTorch does not. Anywhere else nothing happens.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
COLLAPSE = 25  # MADV_COLLAPSE, of Linux 6.1 and newer; Python does not know it


@functools.cache
def page_size() -> int:
    """Bytes of a huge page; 0 where there are none, or where the administrator does not want them."""
    try:
        unwanted = "[never]" in (SETTINGS / "enabled").read_text()
        return 0 if unwanted else int((SETTINGS / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


@functools.cache
def advise() -> Callable[[int, int, int], int] | None:
    """``madvise(address, bytes, advice)`` of the system; None where there is none."""
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function: Callable[[int, int, int], int] = madvise
    return function


def use_huge_pages(address: int, size: int) -> int:
    """Moves memory that is in use into huge pages, with what else of the process lies in them; its contents stay.

    Args:
        address, size: of the memory, in bytes.

    Returns:
        how many pages the system made huge; one with memory that is not in use stays as it is.
    """
    page, call = page_size(), advise()
    if not page or call is None:
        return 0
    pages = range(address // page * page, address + size, page)
    return sum(call(start, page, COLLAPSE) == 0 for start in pages)
