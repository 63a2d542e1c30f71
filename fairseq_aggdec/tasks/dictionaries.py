"""Dictionaries read at once: fairseq adds one line after the other, which takes a second for 256,000 types."""

from __future__ import annotations

from typing import Any

from fairseq.data import Dictionary


class WholeDictionary(Dictionary):
    """fairseq's, which reads a file without repetitions in one step; any other file as fairseq reads it."""

    def add_from_file(self, f: Any) -> None:
        if isinstance(f, str):
            try:
                with open(f, encoding="utf-8") as file:
                    lines = [line.rstrip() for line in file]
                # No pairs: Python would look through half a million of them again and again.
                symbols = [line[: line.rindex(" ")] for line in lines]
                counts = [int(line[line.rindex(" ") + 1 :]) for line in lines]
            except (OSError, ValueError, LookupError):
                return super().add_from_file(f)
            plain = all(not symbol.endswith(" #fairseq:overwrite") for symbol in symbols)
            fresh = {symbol: number for number, symbol in enumerate(symbols, len(self.symbols))}
            if plain and len(fresh) == len(symbols) and self.indices.keys().isdisjoint(fresh):
                self.symbols += symbols
                self.count += counts
                self.indices.update(fresh)
                return None
        return super().add_from_file(f)
