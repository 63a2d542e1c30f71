"""Files that models are loaded from, held open: a model stays one state of its files.

A mapped file is in memory as long as its model. Whoever writes to that file changes the numbers of every process that
has mapped it. Whoever writes a new file and renames it changes nobody.
"""

import os
import stat
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from fairseq_aggdec.stored.options import CheckpointError

HANDLES = "/proc/self/fd"


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Place on the disk, size and times of change: whoever writes to a file or replaces it changes one."""
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


class HeldFile:
    """A regular file that is open for reading, whatever its name comes to mean.

    Args:
        path: as messages name it.
        folder: a handle of the folder in which the last part of ``path`` is looked up; None: ``path`` is.

    Attributes:
        handle: of the open file. stamp: of the state that was opened.
        compare: tells whether the contents are those that were opened; None: only the stamp tells.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """

    compare: Callable[["HeldFile"], bool] | None = None

    def __init__(self, path: str | os.PathLike[str], folder: int | None = None):
        self.path = Path(path)
        name = os.fspath(path) if folder is None else self.path.name
        # Without O_NONBLOCK a pipe would wait for somebody who writes.
        self.handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        weakref.finalize(self, os.close, self.handle)
        status = os.fstat(self.handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no regular file")
        self.stamp = stamp_of(status)

    @property
    def size(self) -> int:
        return self.stamp[2]

    @property
    def place(self) -> str:
        """A path by which functions that take no handle open this file."""
        return f"{HANDLES}/{self.handle}" if os.path.isdir(HANDLES) else os.fspath(self.path)

    def is_named(self) -> bool:
        """Tells whether its path still leads to the state that was opened."""
        try:
            return stamp_of(os.stat(self.path)) == self.stamp
        except OSError:
            return False

    def check(self) -> None:
        """Asks the system whether the contents are still those that were opened: a microsecond.

        Raises:
            CheckpointError: somebody has written to the file.
        """
        now = stamp_of(os.fstat(self.handle))
        if now == self.stamp:
            return
        same = now[:-1] == self.stamp[:-1]  # renamed or removed, which changes the last time
        if now[:3] == self.stamp[:3] and (same if self.compare is None else self.compare(self)):
            self.stamp = now
            return
        raise CheckpointError(
            f"{self.path} was written to after it was loaded, so its model is gone: start this process again, and next "
            "time write a new file beside it and rename it."
        )


_of_models: WeakKeyDictionary[nn.Module, tuple[HeldFile, ...]] = WeakKeyDictionary()


def hold(model: nn.Module, files: Iterable[HeldFile]) -> None:
    """Keeps files open as long as a model that is mapped from them, for :func:`check_held`."""
    _of_models[model] = (*_of_models.get(model, ()), *files)


def check_held(models: Iterable[Any]) -> None:
    """Asks whether the files that models are mapped from are as they were: before each batch and behind it.

    Raises:
        CheckpointError: somebody has written to one.
    """
    for model in models:
        for file in _of_models.get(model, ()) if model is not None else ():
            file.check()


def check_named(files: Mapping[str, HeldFile] | Iterable[HeldFile]) -> None:
    """Tells, when everything was loaded, whether files that were opened by their names were those that are held.

    Raises:
        CheckpointError: one was replaced meanwhile.
    """
    for file in files.values() if isinstance(files, Mapping) else files:
        if not file.is_named():
            raise CheckpointError(
                f"{file.path} was replaced while its model was being loaded: load it again."
            )
