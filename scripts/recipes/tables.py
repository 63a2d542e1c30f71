"""Tables of results, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairseq_aggdec.records.results import cell


def said(value: Any) -> str:
    """A number as it is read best; nothing for None.

    >>> said([1.5, 0.0012]), said({"loss": 3})
    ('1.50 1.2e-03', 'loss 3')
    """
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-2 else f"{value:.2f}"
    if isinstance(value, list):
        return " ".join(map(said, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {said(one)}" for name, one in value.items())
    return "" if value is None else str(value)


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Heads and rows of as many cells."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(cell(said(value)) for value in row)} |" for row in rows]
    return "\n".join(lines)


def of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with a column for every name that any row has."""
    if not rows:
        return "Nothing was found."
    names = list(dict.fromkeys(name for row in rows for name in row))
    return table(names, ([row.get(name) for name in names] for row in rows))
