"""Progress of what takes seconds, with a rate and a time left: on a terminal only, so that a log has no bars."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

One = TypeVar("One")


def passing(things: Iterable[One], what: str, unit: str) -> "tqdm[One]":
    """The same things in turn, while a bar counts them."""
    return tqdm(things, desc=what, unit=unit, leave=False, disable=None)


def counting(what: str, unit: str, total: float) -> "tqdm[Any]":
    """A bar for amounts up to ``total``, which its ``update`` is told; it is a context."""
    return tqdm(desc=what, unit=unit, total=total, unit_scale=True, leave=False, disable=None)


def save(state: dict[str, Any], path: Path) -> None:
    """Writes what ``torch.save`` writes, while a bar counts the bytes.

    Args:
        state: of a checkpoint; the tensors of its entry ``model`` are most of the file.
    """
    storages = {}
    for value in state["model"].values():
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    with (
        path.open("wb") as file,
        counting(f"writing {path.name}", "B", sum(storages.values())) as bar,
    ):
        counted: Any = Counted(file, bar)
        torch.save(state, counted)


class Counted:
    """A file that is written to while a bar counts the bytes."""

    def __init__(self, file: Any, bar: "tqdm[Any]"):
        self.file, self.bar = file, bar

    def write(self, content: Any) -> int:
        """Writes bytes; returns how many."""
        count = int(self.file.write(content))
        self.bar.update(count)
        return count

    def flush(self) -> None:
        self.file.flush()
