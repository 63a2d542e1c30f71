"""Conditional probabilities as flat arrays: P(value | key), the values of a key beside each other, best first.

Tables lie in a folder beside the binarised data, ``lattice.SOURCE-TARGET``, one ``.npy`` file per array and a
``header.json`` that names dictionaries, sizes and the command. They are memory-mapped when opened: processes share them
and only what is looked up is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

HEADER = "header.json"
FORMAT = 1


@dataclass(frozen=True)
class Table:
    """P(value | key) of the K keys that were seen, E entries in all.

    Attributes:
        keys: (K,) int64, ascending.
        starts: (K + 1,) int64, where the entries of each key begin; the last is E.
        values: (E,) int32.
        probabilities: (E,) float32.
        width: entries of the longest key, at least 1.
    """

    keys: Tensor
    starts: Tensor
    values: Tensor
    probabilities: Tensor
    width: int

    def to(self, device: torch.device | str) -> Table:
        moved = {name: getattr(self, name).to(device) for name in ARRAYS}
        return Table(**moved, width=self.width)

    def look_up(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The entries of keys of any shape (...) with at least one dimension.

        Returns:
            Values (..., width) int32, 0 behind the last; probabilities (..., width) float32, 0 behind the last and for
            keys that were never seen; which keys were seen (...) bool.
        """
        if not self.keys.numel():
            nothing = self.probabilities.new_zeros(*keys.shape, self.width)
            return nothing.int(), nothing, torch.zeros_like(keys, dtype=torch.bool)
        place = torch.searchsorted(self.keys, keys.contiguous()).clamp_(max=self.keys.numel() - 1)
        seen = self.keys[place] == keys
        start = self.starts[place]
        count = (self.starts[place + 1] - start) * seen
        offset = torch.arange(self.width, device=keys.device)
        used = offset < count.unsqueeze(-1)  # (..., width)
        index = torch.where(used, start.unsqueeze(-1) + offset, 0)
        return self.values[index] * used, self.probabilities[index] * used, seen


ARRAYS = tuple(field.name for field in fields(Table) if field.name != "width")


def describe(dictionary: Dictionary) -> dict[str, Any]:
    """The number of symbols of a dictionary, and a short hash of them in their order."""
    text = "\n".join(dictionary.symbols).encode()
    return {"symbols": len(dictionary), "sha256": hashlib.sha256(text).hexdigest()[:16]}


def save(folder: Path, tables: Mapping[str, Table], header: Mapping[str, Any]) -> None:
    """Writes tables by name; the header last, so that a folder with a header is whole.

    Who has older tables of the folder open keeps them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / HEADER).unlink(missing_ok=True)
    for name, table in tables.items():
        for array in ARRAYS:
            _replace(folder / f"{name}.{array}.npy", getattr(table, array).cpu().numpy())
    widths = {name: table.width for name, table in tables.items()}
    text = json.dumps({"format": FORMAT, **header, "widths": widths}, indent=2, ensure_ascii=False)
    (folder / HEADER).write_text(text + "\n", encoding="utf-8")


def _replace(path: Path, array: np.ndarray) -> None:
    # A file that others have mapped must not change under them.
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, array)
    partial.replace(path)


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a folder of tables.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of another format.
    """
    try:
        header: dict[str, Any] = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        if not isinstance(header, dict):
            raise ValueError("no object")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{folder} holds no lattice tables; aggdec lattice-tables makes them"
        ) from error
    except ValueError as error:
        raise ValueError(f"{folder / HEADER} is damaged ({error}); make the tables anew") from error
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{folder / HEADER} has format {header.get('format')}, this version reads {FORMAT}; make the tables anew"
        )
    return header


def check_dictionary(
    folder: Path, header: Mapping[str, Any], side: str, dictionary: Dictionary
) -> None:
    """Refuses tables that were made with another dictionary.

    Args:
        side: ``source`` or ``target``.

    Raises:
        ValueError: it is another one.
    """
    described, expected = describe(dictionary), header["dictionaries"][side]
    if described != expected:
        raise ValueError(
            f"the lattice tables in {folder} belong to another {side} dictionary ({expected['symbols']} symbols, "
            f"here {described['symbols']}); make them anew from this data"
        )


def load(folder: Path, name: str, header: Mapping[str, Any]) -> Table:
    """A table, memory-mapped."""
    arrays = {array: _map(folder / f"{name}.{array}.npy", KINDS[array]) for array in ARRAYS}
    table = Table(**arrays, width=header["widths"][name])
    if reason := _fault(table):
        raise ValueError(f"{folder}: the table {name} is damaged ({reason}); make the tables anew")
    return table


KINDS = {"keys": np.int64, "starts": np.int64, "values": np.int32, "probabilities": np.float32}


def _map(path: Path, kind: type) -> Tensor:
    # Copy on write: PyTorch has no read-only tensors, and nothing is written.
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a damaged header makes NumPy raise nearly anything
        raise ValueError(f"{path} is damaged ({error}); make the tables anew") from error
    if array.dtype != kind or array.ndim != 1:
        raise ValueError(f"{path} is damaged (no list of {kind.__name__}); make the tables anew")
    return torch.from_numpy(array)


def _fault(table: Table) -> str | None:
    """Why a table cannot be read, None for one that can; one pass over its arrays."""
    keys, starts, values, chances = (getattr(table, name).numpy() for name in ARRAYS)
    if len(starts) != len(keys) + 1 or len(values) != len(chances):
        return "arrays of different lengths"
    sizes = np.diff(starts)
    if starts[0] != 0 or starts[-1] != len(values) or (sizes < 0).any():
        return "entries that do not follow each other"
    if type(table.width) is not int or table.width != max(1, int(sizes.max(initial=0))):
        return "another width than its longest key has"
    if (np.diff(keys) <= 0).any():
        return "keys that do not ascend"
    if values.min(initial=0) < 0:
        return "values below 0"
    if not (chances.min(initial=0.0) >= 0 and chances.max(initial=0.0) < np.inf):
        return "probabilities that are none"
    return None
