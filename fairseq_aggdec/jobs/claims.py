"""Who works on what in a folder that machines share: a claim is a file on which its holder has the system's lock.

The system gives a lock back when its holder ends, however that happens, and network file systems do so when a machine
is gone. A holder that stands still keeps its claims. Nothing that is right depends on claims: what is put in place was
written whole under another name, and is the same whoever wrote it.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL = 0.5  # seconds between two looks at what others have claimed


@contextmanager
def claim(folder: Path, name: str) -> Iterator[bool]:
    """Holds ``NAME.claim`` in an existing folder, if nobody else does: the value is whether it is held.

    Raises:
        OSError: a file system without locks.
    """
    path = folder / f"{name}.claim"
    # As open() makes files: workers of a group may share a folder.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        mine = _lock(descriptor, path) and _is_there(descriptor, path)
        try:
            yield mine
        finally:
            if mine:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@contextmanager
def turn(
    folder: Path,
    name: str,
    done: Callable[[], bool],
    wait: Callable[[], object] = lambda: None,
) -> Iterator[bool]:
    """Takes a claim as soon as nobody else holds it; not held where what it is for was ``done`` meanwhile.

    Args:
        wait: is called once if somebody else holds it.
    """
    announced = False
    while True:
        with claim(folder, name) as mine:
            if mine or done():
                yield mine
                return
        if not announced:
            wait()
            announced = True
        time.sleep(POLL)


def _lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        said = f"{error.strerror}; the file system must have locks (flock)"
        raise OSError(error.errno, said, str(path)) from None
    return True


def _is_there(descriptor: int, path: Path) -> bool:
    """Tells whether a file has its name still: the holder before may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
