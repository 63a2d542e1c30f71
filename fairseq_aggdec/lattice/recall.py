"""How many reference tokens a lattice holds (Deng and Rush 2023, figure 1), and the weights that make it hold many.

A reference token is held at N when it is among the N likeliest words of its position, the reference's own length given.
``</s>`` is in every lattice and is not counted. The shared-vocabulary lattice (L'Hostis et al. 2016) has the same N
words at every position: those with the largest sum of P(y | x_s) over the source words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_aggdec.lattice.alignment.corpus import Sentences
from fairseq_aggdec.lattice.candidates import (
    CandidateModel,
    Smoothing,
    Special,
    Weights,
    gather_words,
    most_likely,
)
from fairseq_aggdec.models.nar_drafter import NarDrafterModel

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


def shared_vocabulary(model: CandidateModel) -> Proposer:
    """Proposes the same words at every position."""

    def propose(
        words: Tensor, lengths: Tensor, positions: int, count: int
    ) -> tuple[Tensor, Tensor]:
        tokens, chances, _ = model.lexicon.look_up(words)  # (B, S, K)
        tokens, chances = tokens.flatten(1).unsqueeze(1), chances.flatten(1).unsqueeze(1)
        best, sums = most_likely(tokens, chances, count, model.special.types)  # (B, 1, N)
        return best.expand(-1, positions, -1), sums.expand(-1, positions, -1)

    return propose


def non_autoregressive(model: NarDrafterModel, special: Special) -> Proposer:
    """Proposes what a non-autoregressive Transformer finds likely in each slot of its first block.

    Args:
        model: in evaluation mode; what is longer than its block has no candidates.
        special: symbols of its dictionaries.
    """
    decoder: Any = model.decoder

    @torch.inference_mode()
    def propose(
        words: Tensor, lengths: Tensor, positions: int, count: int
    ) -> tuple[Tensor, Tensor]:
        source = torch.nn.functional.pad(words, (0, 1), value=special.pad)
        source = source.scatter(1, lengths.unsqueeze(1), special.eos)  # (B, S + 1)
        slots = words.new_full((len(words), decoder.block_size), decoder.mask_index)
        features = model(source, lengths + 1, slots)[:, :positions]  # (B, T or k, C)
        chances = decoder.output_layer(features).float().softmax(-1)
        best = chances.topk(min(count, chances.size(-1)))
        missing = (0, 0, 0, positions - features.size(1))
        tokens, found = (
            torch.nn.functional.pad(part, missing) for part in (best.indices, best.values)
        )
        return tokens, found

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
