"""The tokens before each place of the windows that a search of the library asks for, for rules in Python."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fairseq_aggdec.search.compiled.searches import numbers
from fairseq_aggdec.search.compiled.tables import changes_of
from fairseq_aggdec.search.rules import OwnRule


class RuledLines:
    """Asks rules from outside the package about every place of the windows of a batch.

    Args:
        rules: from outside the package.
    """

    def __init__(self, rules: Sequence[OwnRule]):
        self.rules = rules
        # of each sentence the token in each place of its cache
        self.held: defaultdict[int, dict[int, int]] = defaultdict(dict)

    def changes(self, request: Any, types: int) -> Tensor:
        """Changes (C, 3) of the logits (N, ``types``) of a window; asked about every window once, in their order.

        Raises:
            ValueError: a rule names a token that the dictionary lacks.
        """
        triples = []
        for place, line in enumerate(self._lines(request)):
            for rule in self.rules:
                for token, nats in rule.changes(line):
                    if not 0 <= token < types:
                        raise ValueError(
                            f"{type(rule).__name__}.changes() names the token {token}: the dictionary has 0 to "
                            f"{types - 1}"
                        )
                    triples.append((place, int(token), float(nats)))
        return changes_of(triples)

    def _lines(self, request: Any) -> list[list[int]]:
        """Tokens that each of the N places sees, its own the last."""
        flat = iter(numbers(request.moves, 3 * request.moved))
        for row, source, target in zip(flat, flat, flat, strict=True):
            self.held[row][target] = self.held[row][source]
        tokens, size = numbers(request.tokens, request.count), request.seen_bytes
        seen = ctypes.string_at(request.seen, request.count * size) if request.seen else b""
        starts, widths = (numbers(at, request.rows) for at in (request.starts, request.widths))
        lines: list[list[int]] = []
        for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
            held, first = self.held[row], len(lines)
            held.update(enumerate(tokens[first : first + width], start))
            for place in range(start, start + width):
                visible: Sequence[int] = range(place + 1)
                if seen:
                    at = len(lines) * size
                    bits = int.from_bytes(seen[at : at + size], "little")
                    visible = [p for p in range(request.end) if bits >> p & 1]
                lines.append([held[p] for p in visible])
        return lines
