"""How many reference tokens a lattice holds (Deng and Rush 2023, figure 1), and the weights that make it hold many.

A reference token is held at N when it is among the N likeliest words of its position, the reference's own length given.
``</s>`` is in every lattice and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_aggdec.lattice.alignment.corpus import Sentences
from fairseq_aggdec.lattice.candidates import (
    CandidateModel,
    Smoothing,
    Weights,
    gather_words,
)

START = Weights(translation=0.4, position=0.6)
GRID = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
COUNTS = (16, 32, 64, 128)  # N, the points of the curve
_BATCH = 32

# Words (B, S), their number (B,), T, N -> tokens (B, T, N) and probabilities (B, T, N)
Proposer = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


def by_position(model: CandidateModel, smoothing: Smoothing) -> Proposer:
    """Proposes what the candidate model does."""

    def propose(
        words: Tensor, lengths: Tensor, positions: int, count: int
    ) -> tuple[Tensor, Tensor]:
        return model.words(words, lengths, positions, count, smoothing)

    return propose


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
    pad = model.special.pad
    for chosen in _batches(target.lengths):
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
    model: CandidateModel,
    source: Sentences,
    target: Sentences,
    device: torch.device | str = "cpu",
) -> tuple[Weights, float]:
    """The weights of interpolation with the highest mean recall over :data:`COUNTS`, one after the other on a grid.

    Args:
        model: of other sentences than these, on ``device``.
        source, target: training sentences that were held out.

    Returns:
        The weights and their mean recall. Of equally good ones the lowest.
    """

    def measure(weights: Weights) -> float:
        propose = by_position(replace(model, weights=weights), "interpolated")
        ranks = reference_ranks(model, source, target, propose, max(COUNTS), device)
        return float(np.mean(list(recalls(ranks).values())))

    best = START
    for name in ("translation", "position"):
        found = {value: measure(replace(best, **{name: value})) for value in GRID}
        value = max(GRID, key=found.__getitem__)
        best = replace(best, **{name: value})
    return best, found[value]


def _batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Numbers of sentences that are about equally long."""
    order = np.argsort(lengths, kind="stable")
    bounds = [*range(0, len(order), _BATCH), len(order)]
    return (order[start:stop] for start, stop in pairwise(bounds))
