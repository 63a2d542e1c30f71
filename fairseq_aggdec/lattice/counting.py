"""Counting P(y_t | x_a, a - t) and P(a_t | S, t) over word-aligned sentence pairs (Deng and Rush 2021, section 3).

Every link (a, t) of source position a and target position t, both from 0, is one observation of

    translation   target token y_t given source token x_a and offset a - t
    lexicon       target token y_t given source token x_a, at any offset
    position      source position a given source length S and target position t
    offset        offset a - t

The first and the third are the paper's, the others serve interpolation. An observation is a number, counts are sorted
unique numbers, so counting is sorting: no loop over sentences, links or tokens. Observations are packed as

    ((x * offsets + offset) * target types) + y        and        ((S * positions) + t) * positions + a
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fairseq_aggdec.lattice.alignment.corpus import Sentences
from fairseq_aggdec.lattice.settings import POSITIONS, TOP
from fairseq_aggdec.lattice.tables import Table

_PENDING = 2**25  # observations that are kept before they are counted
NAMES = ("translation", "lexicon", "position", "offset")


@dataclass(frozen=True)
class AlignedPairs:
    """P sentence pairs.

    Attributes:
        source, target: of them.
        links: (L, 2) integers, source and target position within the sentence, sentence after sentence.
        link_counts: (P,) integers, their sum is L.
    """

    source: Sentences
    target: Sentences
    links: np.ndarray
    link_counts: np.ndarray

    def select(self, chosen: np.ndarray) -> AlignedPairs:
        """The pairs where ``chosen`` (P,) bool is true."""
        return AlignedPairs(
            self.source.select(chosen),
            self.target.select(chosen),
            self.links[np.repeat(chosen, self.link_counts)],
            self.link_counts[chosen],
        )

    def check(self, first: int = 0) -> None:
        """Refuses links that point outside of their sentence.

        Args:
            first: number of the first pair in the corpus, for the message.

        Raises:
            ValueError: there is one, or a sentence is too long to be counted.
        """
        sides = self.source.lengths, self.target.lengths
        longest = max(int(lengths.max(initial=0)) for lengths in sides)
        if longest >= POSITIONS:
            raise ValueError(
                f"a sentence has {longest} tokens; lattice tables need fewer than {POSITIONS}"
            )
        pair = np.repeat(np.arange(len(self.link_counts)), self.link_counts)
        bounds = np.stack([lengths[pair] for lengths in sides], 1)
        outside = ((self.links < 0) | (self.links >= bounds)).any(1)
        if outside.any():
            link = int(outside.argmax())
            place = int(pair[link])
            (source, target), sizes = self.links[link].tolist(), [side[place] for side in sides]
            raise ValueError(
                f"sentence pair {first + place + 1} has {sizes[0]} source and {sizes[1]} target tokens but the link "
                f"{source}-{target}"
            )


class Counts:
    """Sorted unique observations (E,) int64 and how often each was made (E,)."""

    def __init__(self) -> None:
        self.observations = self.counts = np.empty(0, np.int64)
        self._pending: list[np.ndarray] = []

    def add(self, observations: np.ndarray) -> None:
        """Counts observations (E,) int64, now or when more of them have come together."""
        self._pending.append(observations)
        if sum(map(len, self._pending)) >= _PENDING:
            self.settle()

    def settle(self) -> None:
        """Counts what is pending."""
        if self._pending:
            observations, counts = np.unique(np.concatenate(self._pending), return_counts=True)
            self._pending.clear()
            self.observations, self.counts = _summed(
                np.concatenate([self.observations, observations]),
                np.concatenate([self.counts, counts]),
            )


class Counter:
    """Counts aligned sentence pairs of two dictionaries.

    Args:
        target_types: size of the target dictionary.
        max_offset: offsets beyond +-``max_offset`` count as the outermost; None keeps all apart.
    """

    def __init__(self, target_types: int, max_offset: int | None = None):
        self.target_types = target_types
        self.reach = POSITIONS - 1 if max_offset is None else max_offset
        self.translation, self.position = Counts(), Counts()
        self.links = 0

    def add(self, pairs: AlignedPairs) -> None:
        """Counts the links of sentence pairs, which have been checked."""
        pair = np.repeat(np.arange(len(pairs.link_counts)), pairs.link_counts)
        at_source, at_target = pairs.links.T.astype(np.int64)
        source, target = pairs.source, pairs.target
        x = source.tokens[_begins(source.lengths)[pair] + at_source].astype(np.int64)
        y = target.tokens[_begins(target.lengths)[pair] + at_target].astype(np.int64)
        offset = np.clip(at_source - at_target, -self.reach, self.reach) + self.reach
        self.translation.add((x * self.offsets + offset) * self.target_types + y)
        lengths = source.lengths.astype(np.int64)[pair]
        self.position.add((lengths * POSITIONS + at_target) * POSITIONS + at_source)
        self.links += len(pair)

    @property
    def offsets(self) -> int:
        return 2 * self.reach + 1

    def tables(self, top: int = TOP) -> dict[str, Table]:
        """The tables by name.

        Args:
            top: how many target tokens are kept per (source token, offset) and per source token. Probabilities are
                those among all of them.
        """
        self.translation.settle()
        self.position.settle()
        observed, counts = self.translation.observations, self.translation.counts
        x, y = observed // (self.offsets * self.target_types), observed % self.target_types
        lexicon = _summed(x * self.target_types + y, counts)
        places = self.position.observations
        offset = np.clip(
            places % POSITIONS - places // POSITIONS % POSITIONS, -self.reach, self.reach
        )
        offsets = _summed(offset + self.reach, self.position.counts)
        return {
            "translation": make_table(observed, counts, self.target_types, top),
            "lexicon": make_table(*lexicon, self.target_types, top),
            "position": make_table(places, self.position.counts, POSITIONS),
            "offset": make_table(*offsets, self.offsets),
        }


def make_table(
    observations: np.ndarray, counts: np.ndarray, values: int, top: int | None = None
) -> Table:
    """The conditional probabilities of counted observations ``key * values + value``.

    Args:
        observations: (E,) int64, ascending.
        counts: (E,).
        values: how many values there are.
        top: keep only the most frequent of each key, of equally frequent ones the lowest.
    """
    keys, value = observations // values, observations % values
    starts = _run_starts(keys)
    sizes = np.diff(starts, append=len(keys))
    totals = np.add.reduceat(counts, starts) if len(starts) else counts
    key = np.repeat(np.arange(len(starts)), sizes)
    # Ascending by key already; the stable sorts keep values ascending among equal counts.
    order = np.argsort(-counts, kind="stable")
    order = order[np.argsort(key[order], kind="stable")]
    if top is not None:
        order = order[np.arange(len(keys)) - starts[key] < top]
        sizes = np.minimum(sizes, top)
    probabilities = (counts[order] / totals[key[order]]).astype(np.float32)
    return Table(
        keys=torch.from_numpy(keys[starts]),
        starts=torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)),
        values=torch.from_numpy(value[order].astype(np.int32)),
        probabilities=torch.from_numpy(probabilities),
        width=int(sizes.max(initial=1)),
    )


def _summed(observations: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unique observations in order, with the sums of their counts."""
    order = np.argsort(observations, kind="stable")
    observations = observations[order]
    starts = _run_starts(observations)
    summed = np.add.reduceat(counts[order], starts) if len(starts) else counts
    return observations[starts], summed


def _run_starts(ordered: np.ndarray) -> np.ndarray:
    """Places where in an ascending array each new value begins."""
    if not len(ordered):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))


def _begins(lengths: np.ndarray) -> np.ndarray:
    """Places where each sentence begins in the flat array."""
    return np.cumsum(lengths, dtype=np.int64) - lengths
