"""Candidate models of aligned training pairs: count, choose the weights on pairs held out, count these too.

The weights are those with which lattices hold the most reference tokens (Deng and Rush 2021, figure 1). A reference
token is held at N when it is among the N likeliest words of its position, the reference's own length given. ``</s>`` is
in every lattice and is not counted.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from fairseq_aggdec.lattice.alignment.corpus import CHUNK, BinarisedPairs, Sentences
from fairseq_aggdec.lattice.alignment.word_alignment import read_links
from fairseq_aggdec.lattice.candidates import CandidateModel, Special, Weights, gather_words
from fairseq_aggdec.lattice.counting import AlignedPairs, Counter
from fairseq_aggdec.lattice.length import LengthModel
from fairseq_aggdec.lattice.settings import HELD_OUT, TOP

_HELD_SHARE = 20  # of small data, not more than one pair in so many is held out
START = Weights(translation=0.4, position=0.6)
GRID = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
COUNTS = (16, 32, 64, 128)  # N, the points of the curve
_BATCH = 32

# Words (B, S), their number (B,), T, N -> tokens (B, T, N) and probabilities (B, T, N)
Proposer = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


class Built(NamedTuple):
    """A candidate model of all pairs and how it came about.

    Attributes:
        links: how many were counted.
        held_out: how many pairs the weights were chosen on; 0 when they are the default.
        held_out_recall: mean recall of :data:`COUNTS` on these pairs by counts without them; None of none.
    """

    model: CandidateModel
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
    special = Special.of(pairs.dictionaries[1])
    counter = Counter(special.types, max_offset)
    held = _spread(len(pairs), held_out)
    kept: list[AlignedPairs] = []
    lengths: list[np.ndarray] = []

    def model(weights: Weights) -> CandidateModel:
        tables = counter.tables(top)
        return CandidateModel(
            **tables, max_offset=counter.reach, length=length, weights=weights, special=special
        )

    for first, chunk in _aligned(pairs, links):
        chosen = held[first : first + len(chunk.link_counts)]
        counter.add(chunk.select(~chosen))
        kept.append(chunk.select(chosen))
        lengths.append(np.stack([chunk.source.lengths, chunk.target.lengths]))
    length = LengthModel.fit(*np.concatenate(lengths, axis=1))
    weights, recall = START, None
    if held.any():
        source, target = (
            Sentences.join(getattr(chunk, side) for chunk in kept) for side in ("source", "target")
        )
        weights, recall = choose_weights(model(START), source, target)
        for chunk in kept:
            counter.add(chunk)
    return Built(model(weights), counter.links, int(held.sum()), recall)


def _aligned(pairs: BinarisedPairs, links: Path) -> Iterator[tuple[int, AlignedPairs]]:
    """The pairs with their links, checked, each chunk with the number of its first pair."""
    first, total = 0, math.ceil(len(pairs) / CHUNK)
    chunks = tqdm(pairs.chunks(), desc="count", unit=" chunks", total=total, disable=None)
    for sides, of_chunk in zip_longest(chunks, read_links(links)):
        at, counts = of_chunk or (np.empty((0, 2), np.int32), np.empty(0, np.int64))
        expected = len(sides[0].lengths) if sides else 0
        if len(counts) > expected:
            more = f"has more lines than there are sentence pairs ({len(pairs)})"
            raise ValueError(f"{links} {more}")
        if len(counts) < expected:
            lines = first + len(counts)
            raise ValueError(f"{links} has {lines} lines for {len(pairs)} sentence pairs")
        chunk = AlignedPairs(sides[0], sides[1], at, counts)
        chunk.check(first)
        yield first, chunk
        first += expected


def _spread(pairs: int, held_out: int) -> np.ndarray:
    """(P,) bool: which pairs are held out, at equal distances."""
    chosen = np.zeros(pairs, bool)
    count = min(held_out, pairs // _HELD_SHARE)
    if count:
        chosen[:: math.ceil(pairs / count)] = True
    return chosen


def reference_ranks(
    model: CandidateModel,
    source: Sentences,
    target: Sentences,
    propose: Proposer,
    count: int,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """Rank of every reference token among the proposed words of its position, from 0; ``count`` when it is not there.

    Args:
        model: on ``device``.
        source, target: P sentences each.
        count: how many words are proposed.

    Returns:
        (tokens of the target,) int64, in order of sentence length.
    """
    ranks = [np.empty(0, np.int64)]
    pad, order = model.special.pad, np.argsort(target.lengths, kind="stable")
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]  # about equally long
        sources, targets = (
            pad_sequence([torch.from_numpy(side[row]).long() for row in chosen], True, pad)
            for side in (list(source), list(target))
        )
        words, lengths = gather_words(sources.to(device), model.special)
        tokens, chances = propose(words, lengths, targets.size(1), count)
        same = (tokens == targets.to(device).unsqueeze(2)) & (chances > 0)  # (B, T, N)
        rank = torch.where(same.any(2), same.int().argmax(2), count).cpu()
        ranks.append(rank[targets != pad].numpy())
    return np.concatenate(ranks)


def recalls(ranks: np.ndarray, counts: Sequence[int] = COUNTS) -> dict[int, float]:
    """Share of reference tokens that are held at each N."""
    return {count: float((ranks < count).mean()) for count in counts}


def choose_weights(
    model: CandidateModel, source: Sentences, target: Sentences
) -> tuple[Weights, float]:
    """The weights of interpolation with the highest mean recall over :data:`COUNTS`, one after the other on a grid.

    Args:
        model: of other sentences than these.
        source, target: training sentences that were held out.

    Returns:
        The weights and their mean recall. Of equally good ones the lowest.
    """

    def measure(weights: Weights) -> float:
        words = replace(model, weights=weights).words
        propose = functools.partial(words, smoothing="interpolated")
        ranks = reference_ranks(model, source, target, propose, max(COUNTS))
        return float(np.mean(list(recalls(ranks).values())))

    best = START
    for name in ("translation", "position"):
        measured = {value: measure(replace(best, **{name: value})) for value in GRID}
        value = max(GRID, key=measured.__getitem__)
        best = replace(best, **{name: value})
    return best, measured[value]
