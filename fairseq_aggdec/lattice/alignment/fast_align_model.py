"""The model that fast_align estimates, IBM model 2 with a diagonal preference (Dyer et al. 2013), and its best links.

systran-align writes the probabilities P(target token | source token) of each direction to a file and aligns with them
only in both directions at once and with a fixed tension. Read here, they give each direction by itself, with the
tension that was estimated. Target token j of n, source token i of m, both from 1, z_j normalising over i:

    P(a_j = 0) = p0        P(a_j = i) = (1 - p0) exp(-tension |i / m - j / n|) / z_j
    a_j = argmax P(y_j | x_a) P(a)            0 is the empty word: no link

The links of both directions are combined as Koehn et al. 2003 and ``atools`` do:

    intersect             links that both have
    union                 links that either has
    grow-diag             the intersection; then links of the union that touch one and bring in a token without a link
    grow-diag-final-and   and then links of the forward, then of the reverse direction between two tokens without one
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NULL_CHANCE = 0.08  # p0, as the library has it
START_TENSION = 4.0
_UNSEEN = 1e-9  # probability of a pair that the library does not list
_NULL = "<eps>"
_ENTRY = np.dtype([("target", "<i4"), ("probability", "<f4")])
_BATCH = 128  # sentence pairs that are aligned at once

Link = tuple[int, int]
NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]


@dataclass(frozen=True)
class Model:
    """One direction.

    Attributes:
        words: number of each token, from 1.
        keys: (E,) int64, ascending: source number * (tokens + 1) + target number.
        probabilities: (E,) float32.
        tension: preference for the diagonal.
    """

    words: dict[str, int]
    keys: np.ndarray
    probabilities: np.ndarray
    tension: float = START_TENSION

    @classmethod
    def read(cls, path: Path, tension: float = START_TENSION) -> Model:
        """Reads a file of ``systran_align.generate_alignment_probabilities``.

        Raises:
            ValueError: it is of a form that is not known here.
        """
        content = path.read_bytes()
        try:
            words, rows = _parse(content)
        except (struct.error, ValueError, IndexError) as error:
            raise ValueError(
                f"{path.name} of systran-align has an unknown form ({error})"
            ) from error
        stride = len(words) + 1
        keys = [source * stride + entries["target"].astype(np.int64) for source, entries in rows]
        chances = [entries["probability"] for _, entries in rows]
        key = np.concatenate([*keys, np.empty(0, np.int64)])
        order = np.argsort(key)
        chance = np.concatenate([*chances, np.empty(0, np.float32)])
        return cls(words, key[order], chance[order], tension)

    def links(
        self, sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """The source position of each target token, -1 for none: (T,) int64 for each sentence pair."""
        number = self.words.get
        source = [[number(word, 0) for word in sentence] for sentence in sources]
        target = [[number(word, 0) for word in sentence] for sentence in targets]
        found: list[np.ndarray] = [np.empty(0, np.int64)] * len(source)
        order = sorted(range(len(source)), key=lambda pair: (len(source[pair]), len(target[pair])))
        for first in range(0, len(order), _BATCH):
            batch = order[first : first + _BATCH]
            aligned = self._align(
                [source[pair] for pair in batch], [target[pair] for pair in batch]
            )
            for pair, positions in zip(batch, aligned, strict=True):
                found[pair] = positions
        return found

    def _align(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        source, m = _padded(sources)  # (P, S), (P,)
        target, n = _padded(targets)  # (P, T), (P,)
        i, j = np.arange(1, source.shape[1] + 1), np.arange(1, target.shape[1] + 1)
        distance = np.abs((i / m[:, None])[:, None, :] - (j / n[:, None])[:, :, None])  # (P, T, S)
        place = np.exp(-self.tension * distance) * (i <= m[:, None])[:, None, :]
        place *= (1 - NULL_CHANCE) / place.sum(2, keepdims=True)
        linked = place * self._chances(source[:, None, :], target[:, :, None])
        null = np.full_like(target, self.words[_NULL])
        unlinked = NULL_CHANCE * self._chances(null, target)
        best = np.where(linked.max(2) > unlinked, linked.argmax(2), -1)
        return [row[:size] for row, size in zip(best, n, strict=True)]

    def _chances(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        wanted = source * (len(self.words) + 1) + target
        if not len(self.keys):
            return np.full(wanted.shape, _UNSEEN)
        place = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, self.probabilities[place], _UNSEEN)


def _parse(content: bytes) -> tuple[dict[str, int], list[tuple[int, np.ndarray]]]:
    """Numbers of the tokens, and for each source number its target numbers with their probabilities.

    The file holds two integers, the second of them the number of tokens; the tokens, ended by zero bytes; an integer;
    and then for each source number: itself, the number of its entries, the entries.
    """
    _, count = struct.unpack_from("<ii", content)
    *words, body = content[8:].split(b"\0", count)
    numbers = {word.decode("utf-8"): number for number, word in enumerate(words, 1)}
    if _NULL not in numbers:
        raise ValueError("no empty word")
    rows, at = [], 4
    while at < len(body):
        source, entries = struct.unpack_from("<ii", body, at)
        rows.append((source, np.frombuffer(body, _ENTRY, entries, at + 8)))
        at += 8 + entries * _ENTRY.itemsize
    return numbers, rows


def _padded(sentences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Sentences (P, longest) int64, 0 behind them, and their lengths (P,)."""
    lengths = np.array([len(sentence) for sentence in sentences])
    padded = np.zeros((len(sentences), lengths.max()), np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = [
        word for sentence in sentences for word in sentence
    ]
    return padded, lengths


def _grow(forward: set[Link], reverse: set[Link]) -> set[Link]:
    links = forward & reverse
    sources, targets = {i for i, _ in links}, {j for _, j in links}
    waiting = sorted((forward | reverse) - links)
    while waiting:
        left = []
        for i, j in waiting:
            new = i not in sources or j not in targets
            if new and any((i + di, j + dj) in links for di, dj in NEIGHBOURS):
                links.add((i, j))
                sources.add(i)
                targets.add(j)
            else:
                left.append((i, j))
        if len(left) == len(waiting):
            break
        waiting = left
    return links


def _grow_final(forward: set[Link], reverse: set[Link]) -> set[Link]:
    links = _grow(forward, reverse)
    sources, targets = {i for i, _ in links}, {j for _, j in links}
    for i, j in [*sorted(forward), *sorted(reverse)]:
        if i not in sources and j not in targets:
            links.add((i, j))
            sources.add(i)
            targets.add(j)
    return links


COMBINE: dict[str, Callable[[set[Link], set[Link]], set[Link]]] = {
    "union": set.union,
    "grow-diag-final-and": _grow_final,
    "grow-diag": _grow,
    "intersect": set.intersection,
    "forward": lambda forward, reverse: forward,
    "reverse": lambda forward, reverse: reverse,
}
