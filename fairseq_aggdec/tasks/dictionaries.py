"""Dictionaries read at once: fairseq adds one line after the other, which takes a second for 256,000 types."""

from typing import Any

import numpy as np
from fairseq.data import Dictionary

# The last file that was read, its symbols, their counts and their numbers from ``_first`` on: of a joint dictionary
# there are two equal files, which need not be in memory twice.
_last: tuple[bytes, list[str], list[int], list[int]] = b"", [], [], []
_first = len(Dictionary())


class WholeDictionary(Dictionary):
    """fairseq's, which reads a file without repetitions in one step; any other file as fairseq reads it."""

    indices: dict[str, int]

    def add_from_file(self, f: Any) -> None:
        if isinstance(f, str):
            try:
                symbols, counts, numbers = _entries(f)
            except (OSError, ValueError):
                return super().add_from_file(f)
            if len(self.symbols) == _first:
                indices = dict(self.indices)
                self.indices.update(zip(symbols, numbers, strict=True))
                if len(self.indices) == _first + len(symbols):
                    self.symbols += symbols
                    self.count += counts
                    return None
                self.indices = indices
        return super().add_from_file(f)

    def __eq__(self, other: object) -> bool:
        """fairseq's, which looks every symbol up; where none is there twice their order tells as much."""
        if isinstance(other, WholeDictionary) and self._once() and other._once():
            return bool(self.symbols == other.symbols)
        return bool(super().__eq__(other))

    def _once(self) -> bool:
        """Tells whether no symbol is there twice."""
        return len(self.indices) == len(self.symbols)


def _entries(path: str) -> tuple[list[str], list[int], list[int]]:
    """Symbols, counts and numbers of a file in which every line is a symbol, a space and a count.

    Raises:
        ValueError: it has other lines.
    """
    global _last
    with open(path, "rb") as file:
        read = file.read()
    if read == _last[0]:
        return _last[1:]
    number = np.frombuffer(read, np.uint8)
    spaces, ends = np.flatnonzero(number == ord(" ")), np.flatnonzero(number == ord("\n"))
    between = len(spaces) == len(ends) and (spaces < ends).all() and (spaces[1:] > ends[:-1]).all()
    if not between or not read.endswith(b"\n") or b"\r" in read:
        raise ValueError(f"{path} has lines that are not a symbol and a count")
    words = read.decode().replace("\n", " ").split(" ")
    symbols, counts = words[:-1:2], list(map(int, words[1::2]))
    _last = read, symbols, counts, list(range(_first, _first + len(symbols)))
    return _last[1:]
