"""Links of each direction as fast_align finds them: IBM model 2 with a diagonal preference (Dyer et al. 2013).

Target token j of n comes from source token i of m, both counted from 1, or from the empty word, i = 0:

    P(a_j = 0) = p0        P(a_j = i) = (1 - p0) exp(-tension |i / m - j / n|) / z_j
    a_j = argmax P(y_j | x_a) P(a)

z_j normalises over i. Expectation maximisation estimates P(y | x), with a Dirichlet prior, and the tension. Operations
have the order of the original program (https://github.com/clab/fast_align, ``-d -o -v``), and two of its peculiarities:
the observed distance counts j from 0, and the gradient of the tension normalises with m and n exchanged. Two places
that are equally far from the diagonal and hold the same word may differ from the original by rounding. Tests compare
with links that the original wrote for 300 and for 4,000 sentence pairs (``tests/origins/README.md``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fairseq_aggdec.lattice.alignment.corpus import Sentences

NULL_CHANCE = 0.08  # p0
START_TENSION = 4.0
LEAST_TENSION, MOST_TENSION = 0.1, 14.0
PRIOR = 0.01  # of the Dirichlet distribution, for each pair of tokens that occurs
_START = 1e-9  # P(y | x) before the first iteration
_STEPS, _RATE = 8, 20.0  # gradient ascent for the tension, in all iterations but the first and last
_PART = 2**22  # places that are worked on at once


@dataclass(frozen=True)
class Part:
    """The places of some sentence pairs: for each target token the empty word and the source tokens of its sentence.

    Attributes:
        starts: (R,) first place of each of the R target tokens.
        row: (E,) target token of each place.
        slot: (E,) source position of each place, from 1; 0 is the empty word.
        m, n, j: (R,) source length, target length and position of each target token, from 0.
    """

    starts: np.ndarray
    row: np.ndarray
    slot: np.ndarray
    m: np.ndarray
    n: np.ndarray
    j: np.ndarray

    @classmethod
    def of(cls, source_lengths: np.ndarray, target_lengths: np.ndarray) -> Part:
        widths = np.repeat(source_lengths + 1, target_lengths)
        starts = np.cumsum(widths) - widths
        row = np.repeat(np.arange(len(widths)), widths)
        ends = np.repeat(np.cumsum(target_lengths) - target_lengths, target_lengths)
        slot = np.arange(len(row)) - starts[row]
        m, n = (np.repeat(one, target_lengths) for one in (source_lengths, target_lengths))
        return cls(starts, row, slot, m, n, np.arange(len(widths)) - ends)

    def distance(self, j: np.ndarray) -> np.ndarray:
        """(E,) how far each place is from the diagonal, for target positions ``j`` (R,)."""
        return np.abs(self.slot / self.m[self.row] - (j / self.n)[self.row])

    def chances(self, translation: np.ndarray, tension: float) -> np.ndarray:
        """(E,) P(y_j | x_a) P(a), of ``translation`` (E,), the P(y_j | x_a)."""
        place = exp(-self.distance(self.j + 1) * tension)
        scale = normaliser(self.j + 1, self.n, self.m, tension) / (1 - NULL_CHANCE)
        place /= scale[self.row]
        place[self.starts] = NULL_CHANCE
        return place * translation

    def best(self, chances: np.ndarray) -> np.ndarray:
        """(R,) source position of the likeliest place, from 0, the first of equals; -1 for the empty word."""
        likeliest = np.flatnonzero(chances == np.maximum.reduceat(chances, self.starts)[self.row])
        first = np.searchsorted(likeliest, self.starts)
        return self.slot[likeliest[first]] - 1


class Estimation:
    """P(y | x) of a corpus, one direction.

    Args:
        source, target: P sentence pairs; no sentence is empty and token numbers are above 0.
        scratch: folder for a file per part, some bytes for each place.
    """

    def __init__(self, source: Sentences, target: Sentences, scratch: Path):
        self.lengths, self.scratch = (source.lengths, target.lengths), scratch
        places = np.cumsum((source.lengths + 1) * target.lengths)
        cuts = np.searchsorted(places, np.arange(_PART, places[-1], _PART)) + 1
        self.cuts = np.unique([0, *cuts, len(places)])
        self.stride = int(target.tokens.max()) + 1
        self.keys = self._number(source, target)
        self.translation = np.full(len(self.keys), _START)
        self.tension = START_TENSION
        sizes = np.stack([target.lengths, source.lengths], 1)
        self.sizes, self.times = np.unique(sizes, axis=0, return_counts=True)

    def _number(self, source: Sentences, target: Sentences) -> np.ndarray:
        """Ascending keys of the pairs of tokens that occur: source * stride + target.

        The files get which of them each place has: ``cells`` of a part, and ``places``, indices of these.
        """
        starts = [np.cumsum(side.lengths) - side.lengths for side in (source, target)]
        keys = np.empty(0, np.int64)
        for number, (first, last, part) in enumerate(self._parts()):
            words = target.tokens[starts[1][first] :][: len(part.starts)].astype(np.int64)
            begin = np.repeat(starts[0][first:last], target.lengths[first:last])
            origin = source.tokens[np.maximum(begin[part.row] + part.slot - 1, 0)].astype(np.int64)
            origin[part.starts] = 0  # the empty word
            cells, places = np.unique(origin * self.stride + words[part.row], return_inverse=True)
            np.save(self.scratch / f"cells{number}.npy", cells)
            np.save(self.scratch / f"places{number}.npy", places.astype(np.int32))
            keys = np.union1d(keys, cells)
        return keys

    def _parts(self) -> Iterator[tuple[int, int, Part]]:
        for first, last in zip(self.cuts[:-1].tolist(), self.cuts[1:].tolist(), strict=True):
            source, target = (lengths[first:last] for lengths in self.lengths)
            yield first, last, Part.of(source, target)

    def _occurrences(self) -> Iterator[tuple[Part, np.ndarray, np.ndarray]]:
        """Parts, their rows of ``keys`` (C,), and for each place which of these it has (E,)."""
        for number, (_, _, part) in enumerate(self._parts()):
            cells, places = (
                np.load(self.scratch / f"{name}{number}.npy") for name in ("cells", "places")
            )
            yield part, np.searchsorted(self.keys, cells), places

    def iterate(self, tighten: bool) -> None:
        """One iteration of expectation maximisation, the tension too if ``tighten``."""
        counts, distance = np.zeros(len(self.keys)), 0.0
        for part, cells, places in self._occurrences():
            chances = part.chances(self.translation[cells][places], self.tension)
            chances /= np.bincount(part.row, chances)[part.row]
            seen = counts[cells]
            np.add.at(seen, places, chances)
            counts[cells] = seen
            chances[part.starts] = 0
            distance += float(part.distance(part.j) @ chances)
        if tighten:
            self._tighten(-distance / self.lengths[1].sum())
        counts += PRIOR
        _, row = np.unique(self.keys // self.stride, return_inverse=True)
        self.translation = np.exp(digamma(counts) - digamma(np.bincount(row, counts))[row])

    def _tighten(self, observed: float) -> None:
        n, m = np.repeat(self.sizes, self.sizes[:, 0], axis=0).T.astype(float)
        j = np.concatenate([np.arange(1, size + 1) for size in self.sizes[:, 0]])
        times = np.repeat(self.times, self.sizes[:, 0])
        for _ in range(_STEPS):
            expected = times @ slope(j, n, m, self.tension) / self.lengths[1].sum()
            self.tension += (observed - expected) * _RATE
            self.tension = min(max(self.tension, LEAST_TENSION), MOST_TENSION)

    def links(self) -> np.ndarray:
        """The source position of each target token, -1 for none: (T,) int64, sentence after sentence."""
        linked = [
            part.best(part.chances(self.translation[cells][places], self.tension))
            for part, cells, places in self._occurrences()
        ]
        return np.concatenate(linked)


def exp(x: np.ndarray) -> np.ndarray:
    """Exponential function of the C library: NumPy's may differ in the last bit, which decides between two equally
    distant places."""
    return np.fromiter(map(math.exp, x.tolist()), float, len(x))


def normaliser(j: np.ndarray, n: np.ndarray, m: np.ndarray, tension: float) -> np.ndarray:
    """z of target position j of n over m source positions, in closed form; arrays of one shape."""
    below = np.floor(j * m / n)
    ratio = np.exp(-tension / m)
    above = (m - below) % 2.0**32  # the original's unsigned number, where m and n are exchanged

    def sum_from(i: np.ndarray, terms: np.ndarray) -> np.ndarray:
        return np.exp(-np.abs(i / m - j / n) * tension) * (1 - ratio**terms) / (1 - ratio)

    return sum_from(below, below) + sum_from(below + 1, above)


def slope(j: np.ndarray, n: np.ndarray, m: np.ndarray, tension: float) -> np.ndarray:
    """d log z / d tension, as the original has it.

    Each half is the sum of an arithmetico-geometric series, whose k-th term is (distance + k step) first ratio^k.
    """
    below = np.floor(j * m / n)
    ratio, step = np.exp(-tension / m), -1 / m

    def sum_from(i: np.ndarray, terms: np.ndarray) -> np.ndarray:
        distance = -np.abs(i / m - j / n)
        first = np.exp(distance * tension)
        past = first * ratio**terms
        end = (step * (terms - 1) + distance) * past - distance * first
        return end / (ratio - 1) - step * (past - first * ratio) / (ratio - 1) ** 2

    whole = np.where(m > below, sum_from(below + 1, m - below), 0)
    whole += np.where(below > 0, sum_from(below, below), 0)
    return whole / normaliser(j, m, n, tension)


def digamma(x: np.ndarray) -> np.ndarray:
    """The logarithmic derivative of the gamma function for x > 0, by its series from 7 on."""
    x, below = x.copy(), np.zeros_like(x)
    while len(small := np.flatnonzero(x < 7)):
        below[small] -= 1 / x[small]
        x[small] += 1
    inverse = 1 / (x := x - 0.5)
    square = inverse * inverse
    fourth = square * square
    series = np.log(x) + 1 / 24 * square - 7 / 960 * fourth
    return below + (series + 31 / 8064 * fourth * square - 127 / 30720 * fourth * fourth)


def best_links(source: Sentences, target: Sentences, iterations: int, scratch: Path) -> np.ndarray:
    """Estimates on a corpus and aligns it.

    Args:
        source, target: sentence pairs; no sentence is empty and token numbers are above 0.
        iterations: passes over the corpus; the last one only aligns.
        scratch: folder for temporary files.

    Returns:
        The source position of each target token, -1 for none: (T,) int64, sentence after sentence.
    """
    estimation = Estimation(source, target, scratch)
    for iteration in tqdm(range(iterations - 1), desc="estimate", unit=" iterations", disable=None):
        estimation.iterate(tighten=iteration > 0)
    return estimation.links()
