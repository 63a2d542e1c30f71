"""The best paths through a lattice: exact, batched, and without asking the device.

Deng and Rush 2021 (section 3) search P(y | x, T) = prod_t P(y_t | y_{t-1}, t, x), a first-order chain, with the Viterbi
algorithm: one step per position, T of them, each N x N.

Scores are added in fixed point (int64, steps of 2^-32 nats), where sums are exact in every order. Of several best paths
the one that is lowest at its *last* position wins, of those the one lowest at the position before, and so on: what
following the lowest of the best predecessors backwards finds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_FRACTION = 32  # bits behind the point
_REACH = 60  # no sum of allowed scores is larger than 2^60
_FORBIDDEN = -(2**61)  # and so none of them is as low as one with a forbidden part, <= -2^60


@dataclass(frozen=True)
class BestPaths:
    """Paths of B rows, P of each (no such dimension for the one best path).

    Attributes:
        choices: (B, [P,] T) int64, index of the candidate at each position.
        scores: (B, [P]) float64, nats; -inf where there is no such path, whose choices are then all 0.
        position_scores: (B, [P,] T) float64, nats: the candidate's own score and that of the edge which leads to it.
            They add up to the score.
    """

    choices: Tensor
    scores: Tensor
    position_scores: Tensor


def viterbi(unary: Tensor, edges: Tensor) -> BestPaths:
    """The best path of every row.

    Args:
        unary: (B, T, N) floating point, score of each candidate in nats; -inf forbids it. T and N are at least 1.
        edges: (B, T - 1, N, N), score of candidate j at position t + 1 after candidate i at t; -inf forbids it.

    Scores are rounded to 2^-32 nats, and those beyond +-2^27 / T nats count as that.
    """
    first, steps = _fixed_point(unary, edges)
    forward = _forward(first, steps)
    best, choice = forward[:, -1].max(1, keepdim=True)  # (B, 1)
    paths = _paths(_trace(forward, steps, choice), best, first, steps)
    return BestPaths(
        paths.choices.squeeze(1), paths.scores.squeeze(1), paths.position_scores.squeeze(1)
    )


def n_best(unary: Tensor, edges: Tensor, count: int) -> BestPaths:
    """The ``count`` best paths of every row, best first; equal ones in the order described above.

    Args:
        unary, edges: as :func:`viterbi` takes them.
        count: P, at least 1. Where a row has fewer paths, the rest have score -inf.
    """
    first, steps = _fixed_point(unary, edges)
    scores = first.new_full((*first.shape, count), _FORBIDDEN)
    scores[:, :, 0] = first
    back = []
    for step in steps.unbind(1):
        scores, origin = _best_prefixes(scores, step)
        back.append(origin)
    order = torch.sort(scores.flatten(1), stable=True, dim=1, descending=True)  # (B, N * P)
    nodes = [order.indices[:, :count]]
    for origin in reversed(back):
        nodes.append(origin.gather(1, nodes[-1]))
    choices = torch.stack(nodes[::-1], 2) // count  # (B, P, T)
    return _paths(choices, order.values[:, :count], first, steps)


# -- fixed point


def _fixed_point(unary: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the first position (B, N) and of each step with the candidate that it leads to (B, T - 1, N, N)."""
    largest = 2.0 ** (_REACH - _FRACTION - 1) / unary.size(1)
    fixed, step = _to_fixed(unary, largest), _to_fixed(edges, largest)
    return fixed[:, 0], _add(step, fixed[:, 1:].unsqueeze(2))


def _to_fixed(scores: Tensor, largest: float) -> Tensor:
    exact = scores.to(torch.float64, copy=True).clamp_(-largest, largest)
    fixed = exact.mul_(2.0**_FRACTION).round_().long()
    return fixed.masked_fill_(scores == -torch.inf, _FORBIDDEN)


def _add(one: Tensor, two: Tensor) -> Tensor:
    """Sum that does not overflow however many forbidden parts it has."""
    return (one + two).clamp_(min=_FORBIDDEN)


def _impossible(score: Tensor) -> Tensor:
    return score <= -(2**_REACH)


def _to_nats(score: Tensor) -> Tensor:
    nats = score.double() / 2.0**_FRACTION
    return nats.masked_fill(_impossible(score), -torch.inf)


# -- forward: (B, T, N) score of the best path that ends in each candidate


def _forward(first: Tensor, steps: Tensor) -> Tensor:
    forward = [first]
    for t in range(steps.size(1)):
        ways = forward[-1].unsqueeze(2) + steps[:, t]  # (B, N, N)
        forward.append(ways.amax(1).clamp_(min=_FORBIDDEN))
    return torch.stack(forward, 1)


# -- backward: what stands at a position, given what stands at the next one


def _best_prefixes(scores: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """One position on with P paths to each candidate.

    Args:
        scores: (B, N, P), best first.
        step: (B, N, N).

    Returns:
        The scores of the next position (B, N, P) and where they come from, candidate * P + rank: (B, N * P).
    """
    count = scores.size(2)
    # (B, 1, N, P) + (B, N next, N, 1) -> (B, N next, N * P)
    ways = _add(scores.unsqueeze(1), step.transpose(1, 2).unsqueeze(3)).flatten(2)
    order = torch.sort(ways, stable=True, dim=2, descending=True)
    return order.values[..., :count], order.indices[..., :count].flatten(1)


def _trace(forward: Tensor, steps: Tensor, last: Tensor) -> Tensor:
    """The best path (B, 1, T) that ends in the candidates ``last`` (B, 1), the lowest of equals."""
    nodes = [last]
    for t in reversed(range(steps.size(1))):
        column = nodes[-1].unsqueeze(1).expand(-1, steps.size(2), 1)
        ways = _add(forward[:, t], steps[:, t].gather(2, column).squeeze(2))  # (B, N)
        nodes.append(ways.max(1, keepdim=True).indices)
    return torch.stack(nodes[::-1], 2)


def _paths(choices: Tensor, best: Tensor, first: Tensor, steps: Tensor) -> BestPaths:
    """The result of paths (B, P, T) with scores (B, P), those that do not exist emptied."""
    missing = _impossible(best).unsqueeze(2)
    choices = choices.masked_fill(missing, 0)
    before, after = choices[..., :-1].transpose(1, 2), choices[..., 1:].transpose(1, 2)
    # (B, T - 1, N, N) -> (B, T - 1, N * N) at (B, T - 1, P)
    moved = steps.flatten(2).gather(2, before * steps.size(3) + after).transpose(1, 2)
    scores = torch.cat([first.gather(1, choices[..., 0]).unsqueeze(2), moved], 2)
    return BestPaths(choices, _to_nats(best), _to_nats(scores.masked_fill(missing, 0)))
