"""Random models and batches for searches, which need no Transformer."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.compiled.searches import WholeSearch, numbers
from fairseq_aggdec.windows.tree_window import TreeWindow
from fairseq_aggdec.windows.window import DecoderOutput

PAD, EOS, UNK, START = 1, 2, 3, 0
CPU = torch.device("cpu")


class Model:
    """Logits of every prefix, at random, the same whenever they are asked for."""

    def __init__(self, chance: random.Random, types: int):
        own = torch.Generator().manual_seed(chance.randrange(1 << 30))
        rows = torch.randn(31, types, generator=own) * chance.choice((0.5, 2.0, 6.0))
        self.rows = rows.round() if chance.random() < 0.3 else rows  # many ties
        if chance.random() < 0.03:
            self.rows[chance.randrange(31)] = torch.nan

    def of(self, sentence: int) -> Callable[[Sequence[int]], Tensor]:
        return lambda prefix: self.logits([sentence], [prefix])[0]

    def logits(self, sentences: Sequence[int], prefixes: Sequence[Sequence[int]]) -> Tensor:
        pairs = zip(sentences, prefixes, strict=True)
        return self.rows[[hash((n, *prefix)) % len(self.rows) for n, prefix in pairs]]


class Cache:
    """What each row of a batch has read, by places; rows that end leave."""

    def __init__(self, model: Model, sentences: int):
        self.model, self.sentences = model, list(range(sentences))
        self.read_tokens: list[dict[int, int]] = [{} for _ in range(sentences)]

    def read(self, window: Any) -> DecoderOutput:
        seen = window.seen if isinstance(window, TreeWindow) else None
        return DecoderOutput(self.of(window.starts, window.widths, window.host_tokens(), seen), [])

    def of(
        self,
        starts: Sequence[int],
        widths: Sequence[int],
        tokens: Sequence[int],
        seen: Sequence[int] | None,
    ) -> Tensor:
        found, at = [], 0
        for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
            known, end = self.read_tokens[row], start + width
            known.update(enumerate(tokens[at : at + width], start))
            for place in range(start, end):
                visible: Sequence[int] = range(place + 1)
                if seen is not None:
                    visible = [p for p in range(end) if seen[at] >> p & 1]
                found.append((self.sentences[row], [known[p] for p in visible]))
                at += 1
        return self.model.logits(*zip(*found, strict=True))

    def keep(self, kept: Any) -> None:
        for row, source, target in kept.moved:
            self.read_tokens[row][target] = self.read_tokens[row][source]
        if kept.rows is not None:
            self.sentences = [self.sentences[row] for row in kept.rows]
            self.read_tokens = [self.read_tokens[row] for row in kept.rows]


def run(search: WholeSearch, cache: Cache) -> None:
    """Runs a compiled search over a model in Python."""
    while (asked := search.ask()) is not None:
        starts, widths = (numbers(at, asked.rows) for at in (asked.starts, asked.widths))
        seen = None
        if asked.seen:
            size = asked.seen_bytes
            packed = ctypes.string_at(asked.seen, asked.count * size)
            parts = [packed[n * size : (n + 1) * size] for n in range(asked.count)]
            seen = [int.from_bytes(part, "little") for part in parts]
        logits = cache.of(starts, widths, numbers(asked.tokens, asked.count), seen)
        ends = [start + width for start, width in zip(starts, widths, strict=True) if width]
        assert asked.end == max(ends)
        search.take(logits.clone())


def random_prefixes(chance: random.Random, rows: int, types: int) -> list[list[int]]:
    size = chance.choice((0, 0, 0, 1, 3))
    words = [PAD, PAD, EOS, *range(3, types)]
    return [[chance.choice(words) for _ in range(size)] for _ in range(rows)]


def random_limits(chance: random.Random, rows: int) -> Limits:
    most = chance.randint(1, 9)
    matches = chance.random() < 0.2
    ends = [chance.randint(1, most) if matches else most for _ in range(rows)]
    floor = 0 if chance.random() < 0.6 else chance.randint(1, max(ends))
    return Limits(ends, floor, matches, most + 1)
