"""From aligned training pairs to a candidate model: count, choose the weights on pairs held out, count these too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fairseq_aggdec.lattice.alignment.corpus import CHUNK, BinarisedPairs, Sentences
from fairseq_aggdec.lattice.alignment.word_alignment import read_links
from fairseq_aggdec.lattice.candidates import CandidateModel, Special, Weights
from fairseq_aggdec.lattice.counting import TOP, AlignedPairs, Counter
from fairseq_aggdec.lattice.length import LengthModel
from fairseq_aggdec.lattice.recall import START, choose_weights

HELD_OUT = 500
_HELD_SHARE = 20  # of small data, not more than one pair in so many is held out


@dataclass(frozen=True)
class Built:
    """A candidate model of all pairs and how it came about.

    Attributes:
        model: ready to be saved.
        pairs, links: how many were counted.
        held_out: how many pairs the weights were chosen on; 0 when they are the default.
        held_out_recall: mean recall of ``recall.COUNTS`` on these pairs by counts without them; None of none.
    """

    model: CandidateModel
    pairs: int
    links: int
    held_out: int
    held_out_recall: float | None


def build(
    pairs: BinarisedPairs,
    links: Path,
    top: int = TOP,
    max_offset: int | None = None,
    held_out: int = HELD_OUT,
) -> Built:
    """Counts all pairs and chooses the weights of interpolation.

    Args:
        links: file of word alignments, a line for each pair.
        top: target tokens kept per (source token, offset).
        max_offset: offsets beyond +-``max_offset`` count as the outermost; None keeps all apart.
        held_out: how many pairs the weights are chosen on at most; 0 takes the default weights.

    Raises:
        FileNotFoundError: there is no file of links.
        ValueError: the links do not fit the pairs.
    """
    if not len(pairs):
        raise ValueError(f"{pairs.data}: the set {pairs.split} has no sentence pairs")
    types = len(pairs.dictionaries[1])
    counter, rest = Counter(types, max_offset), Counter(types, max_offset)
    held = _spread(len(pairs), held_out)
    kept: list[AlignedPairs] = []
    lengths: list[tuple[np.ndarray, np.ndarray]] = []
    for first, chunk in _aligned(pairs, links):
        chosen = held[first : first + len(chunk.link_counts)]
        counter.add(chunk.select(~chosen))
        kept.append(chunk.select(chosen))
        rest.add(kept[-1])
        lengths.append((chunk.source_lengths, chunk.target_lengths))
    length = LengthModel.fit(*(np.concatenate(side) for side in zip(*lengths, strict=True)))
    weights, recall = START, None
    if held.any():
        source, target = _join(kept)
        model = _model(counter, top, length, START, pairs)
        weights, recall = choose_weights(model, source, target)
        counter.merge(rest)
    model = _model(counter, top, length, weights, pairs)
    return Built(model, len(pairs), counter.links, int(held.sum()), recall)


def _aligned(pairs: BinarisedPairs, links: Path) -> Iterator[tuple[int, AlignedPairs]]:
    """The pairs with their links, checked, each chunk with the number of its first pair."""
    found = read_links(links)
    chunks = pairs.chunks()
    starts = range(0, len(pairs), CHUNK)
    for first, (source, target) in zip(
        tqdm(starts, desc="count", unit=" chunks"), chunks, strict=True
    ):
        at, counts = next(found, (np.empty((0, 2), np.int32), np.empty(0, np.int64)))
        if len(counts) < len(source.lengths):
            lines = first + len(counts)
            raise ValueError(f"{links} has {lines} lines for {len(pairs)} sentence pairs")
        if len(counts) > len(source.lengths):
            raise ValueError(_too_many(links, pairs))
        chunk = AlignedPairs(
            source.tokens, target.tokens, source.lengths, target.lengths, at, counts
        )
        chunk.check(first)
        yield first, chunk
    if next(found, None) is not None:
        raise ValueError(_too_many(links, pairs))


def _too_many(links: Path, pairs: BinarisedPairs) -> str:
    return f"{links} has more lines than there are sentence pairs ({len(pairs)})"


def _spread(pairs: int, held_out: int) -> np.ndarray:
    """(P,) bool: which pairs are held out, at equal distances."""
    chosen = np.zeros(pairs, bool)
    count = min(held_out, pairs // _HELD_SHARE)
    if count:
        chosen[:: math.ceil(pairs / count)] = True
    return chosen


def _join(parts: list[AlignedPairs]) -> tuple[Sentences, Sentences]:
    source = Sentences(
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.source_lengths for part in parts]),
    )
    target = Sentences(
        np.concatenate([part.target for part in parts]),
        np.concatenate([part.target_lengths for part in parts]),
    )
    return source, target


def _model(
    counter: Counter, top: int, length: LengthModel, weights: Weights, pairs: BinarisedPairs
) -> CandidateModel:
    return CandidateModel(
        **counter.tables(top),
        max_offset=counter.reach,
        length=length,
        weights=weights,
        special=Special.of(pairs.dictionaries[1]),
    )
