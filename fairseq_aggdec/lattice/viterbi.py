"""The best paths through a lattice: exact, batched, with rows of different lengths, and without asking the device.

Deng and Rush 2023 (section 3) search P(y | x, T) = prod_t P(y_t | y_{t-1}, t, x), a first-order chain, with the Viterbi
algorithm. Two forms of it give the same answer:

- ``serial``: one step per position, T of them, each N x N. The paper's choice and the quicker one on a CPU.
- ``scan``: max-plus products of neighbouring N x N matrices up a tree and vectors down again (Särkkä and
  García-Fernández 2019, Rush 2020): about 2 log T steps, N times the work.

The same answer means the same bits. Floating-point sums depend on their order, so a near-tie could go either way; hence
scores are added in fixed point (int64, steps of 2^-32 nats), where sums are exact. Of several best paths the one that
is lowest at its *last* position wins, of those the one lowest at the position before, and so on: what following the
lowest of the best predecessors backwards finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Form = Literal["serial", "scan"]
FORMS = get_args(Form)

_FRACTION = 32  # bits behind the point
_REACH = 60  # no sum of allowed scores is larger than 2^60
_FORBIDDEN = -(2**61)  # and so none of them is as low as one with a forbidden part, <= -2^60
_PRODUCT_ELEMENTS = 2**22  # how much of a max-plus product is spread out at once


@dataclass(frozen=True)
class BestPaths:
    """Paths of B rows, P of each (no such dimension for the one best path).

    Attributes:
        choices: (B, [P,] T) int64, index of the candidate at each position; 0 past the row's length.
        scores: (B, [P]) float64, nats; -inf where there is no such path, whose choices are then all 0.
        position_scores: (B, [P,] T) float64, nats: the candidate's own score and that of the edge which leads to it;
            0 past the row's length. They add up to the score.
    """

    choices: Tensor
    scores: Tensor
    position_scores: Tensor


def viterbi(
    unary: Tensor, edges: Tensor, lengths: Tensor | None = None, form: Form = "serial"
) -> BestPaths:
    """The best path of every row.

    Args:
        unary: (B, T, N) floating point, score of each candidate in nats; -inf forbids it. T and N are at least 1.
        edges: (B, T - 1, N, N), score of candidate j at position t + 1 after candidate i at t; -inf forbids it.
        lengths: (B,) int64 between 1 and T, positions of each row; None when all rows have T.
        form: ``serial`` or ``scan``; they differ in speed only.

    Scores are rounded to 2^-32 nats, and those beyond +-2^27 / T nats count as that.

    Raises:
        ValueError: the shapes do not fit or the form is unknown.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it must be one of {', '.join(FORMS)}")
    ends = _last_positions(unary, edges, lengths)
    first, steps = _fixed_point(unary, edges)
    go, trace = (_forward_serial, _trace) if form == "serial" else (_forward_scan, _trace_scan)
    forward = go(first, steps)
    best, choice = _at(forward, ends).max(1, keepdim=True)  # (B, 1)
    found = _paths(trace(forward, steps, choice, ends), best, first, steps, ends)
    return BestPaths(
        found.choices.squeeze(1), found.scores.squeeze(1), found.position_scores.squeeze(1)
    )


def n_best(
    unary: Tensor, edges: Tensor, lengths: Tensor | None = None, count: int = 5
) -> BestPaths:
    """The ``count`` best paths of every row, best first; equal ones in the order described above.

    Args:
        unary, edges, lengths: as :func:`viterbi` takes them.
        count: P, at least 1. Where a row has fewer paths, the rest have score -inf.

    Raises:
        ValueError: the shapes do not fit or ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    ends = _last_positions(unary, edges, lengths)
    first, steps = _fixed_point(unary, edges)
    rows, positions, candidates = unary.shape
    scores = first.new_full((rows, candidates, count), _FORBIDDEN)
    scores[:, :, 0] = first
    kept, back = [scores], []
    for t in range(positions - 1):
        scores, origin = _best_prefixes(scores, steps[:, t])
        kept.append(scores)
        back.append(origin)
    final = _at(torch.stack(kept, 1).flatten(2), ends)  # (B, N * P)
    order = torch.sort(final, stable=True, dim=1, descending=True)
    best, choice = order.values[:, :count], order.indices[:, :count]
    origins = torch.stack(back, 1).flatten(2) if back else choice.new_empty(rows, 0, 1)
    nodes = _follow(origins, choice, ends)  # (B, P, T)
    return _paths(nodes // count, best, first, steps, ends)


# -- fixed point


def _fixed_point(unary: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the first position (B, N) and of each step with the candidate that it leads to (B, T - 1, N, N)."""
    largest = 2.0 ** (_REACH - _FRACTION - 1) / unary.size(1)
    own, step = _to_fixed(unary, largest), _to_fixed(edges, largest)
    return own[:, 0], _add(step, own[:, 1:].unsqueeze(2))


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


def _forward_serial(first: Tensor, steps: Tensor) -> Tensor:
    forward = [first]
    for t in range(steps.size(1)):
        ways = forward[-1].unsqueeze(2) + steps[:, t]  # (B, N, N)
        forward.append(ways.amax(1).clamp_(min=_FORBIDDEN))
    return torch.stack(forward, 1)


def _forward_scan(first: Tensor, steps: Tensor) -> Tensor:
    if steps.size(1) == 0:
        return first.unsqueeze(1)
    left, right = steps[:, 0::2], steps[:, 1::2]
    pairs = _max_plus(left[:, : right.size(1)], right)
    even = _forward_scan(first, pairs)  # positions 0, 2, 4, ...
    odd = _add(even[:, : left.size(1)].unsqueeze(3), left).amax(2)  # positions 1, 3, 5, ...
    forward = first.new_empty(first.size(0), steps.size(1) + 1, first.size(1))
    forward[:, 0::2], forward[:, 1::2] = even, odd
    return forward


def _max_plus(left: Tensor, right: Tensor) -> Tensor:
    """Matrix products (B, M, N, N) in which adding is taking the larger and multiplying is adding."""
    middle = left.size(3)
    width = max(1, _PRODUCT_ELEMENTS // max(1, left.numel()))
    product = torch.full_like(left, _FORBIDDEN)
    for start in range(0, middle, width):
        part = slice(start, start + width)
        # (B, M, N, width, 1) + (B, M, 1, width, N)
        paths = _add(left[..., part].unsqueeze(4), right[:, :, part].unsqueeze(2))
        product = torch.maximum(product, paths.amax(3))
    return product


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


def _trace(forward: Tensor, steps: Tensor, last: Tensor, ends: Tensor) -> Tensor:
    """The best path (B, 1, T) that ends in the candidates ``last`` (B, 1) at ``ends`` (B,), the lowest of equals."""
    ends = ends.unsqueeze(1)
    node = last
    nodes = [node]
    for t in reversed(range(steps.size(1))):
        column = node.unsqueeze(1).expand(-1, steps.size(2), 1)
        ways = _add(forward[:, t], steps[:, t].gather(2, column).squeeze(2))  # (B, N)
        node = torch.where(t < ends, ways.max(1, keepdim=True).indices, last)
        nodes.append(node)
    return _cut(torch.stack(nodes[::-1], 2), ends)


def _follow(origins: Tensor, last: Tensor, ends: Tensor) -> Tensor:
    """Paths (B, P, T) that end in the nodes ``last`` (B, P), where each node (B, T - 1, N) comes from being known."""
    ends = ends.unsqueeze(1)
    node = last
    nodes = [node]
    for t in reversed(range(origins.size(1))):
        node = torch.where(t < ends, origins[:, t].gather(1, node), last)
        nodes.append(node)
    return _cut(torch.stack(nodes[::-1], 2), ends)


def _trace_scan(forward: Tensor, steps: Tensor, last: Tensor, ends: Tensor) -> Tensor:
    """What :func:`_trace` finds, by composing the maps from candidates to predecessors: neighbours, then pairs, ...

    From ``ends`` on every map leads to the last candidate, whatever follows.
    """
    # (B, T - 1, N), the best candidate at t before each candidate at t + 1
    back = _add(forward[:, :-1].unsqueeze(3), steps).max(2).indices
    maps = torch.cat([back, back.new_zeros(back.size(0), 1, back.size(2))], 1)  # (B, T, N)
    position = torch.arange(maps.size(1), device=maps.device)
    maps = torch.where((position >= ends.unsqueeze(1)).unsqueeze(2), last.unsqueeze(2), maps)
    reach = 1
    while reach < maps.size(1):
        further = maps[:, :-reach].gather(2, maps[:, reach:])
        maps = torch.cat([further, maps[:, -reach:]], 1)
        reach *= 2
    return _cut(maps[..., 0].unsqueeze(1), ends.unsqueeze(1))


def _cut(choices: Tensor, ends: Tensor) -> Tensor:
    """Choices (B, P, T) with 0 behind ``ends`` (B, 1)."""
    position = torch.arange(choices.size(2), device=choices.device)
    return choices.masked_fill(position > ends.unsqueeze(2), 0)


# -- in and out


def _last_positions(unary: Tensor, edges: Tensor, lengths: Tensor | None) -> Tensor:
    """(B,) index of each row's last position."""
    if unary.dim() != 3 or not unary.numel():
        raise ValueError(
            f"unary has shape {tuple(unary.shape)}; it must be (B, T, N), none of them 0"
        )
    rows, positions, candidates = unary.shape
    expected = (rows, positions - 1, candidates, candidates)
    if edges.shape != expected:
        raise ValueError(
            f"edges has shape {tuple(edges.shape)}; with this unary it must be {expected}"
        )
    if lengths is None:
        return torch.full((rows,), positions - 1, device=unary.device)
    if lengths.shape != (rows,):
        raise ValueError(f"lengths has shape {tuple(lengths.shape)}; it must be {(rows,)}")
    return lengths - 1


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """(B, T, C) at one position (B,) of each row: (B, C)."""
    index = positions.view(-1, 1, 1).expand(-1, 1, values.size(2))
    return values.gather(1, index).squeeze(1)


def _paths(choices: Tensor, best: Tensor, first: Tensor, steps: Tensor, ends: Tensor) -> BestPaths:
    """The result of paths (B, P, T) with scores (B, P), those that do not exist emptied."""
    missing = _impossible(best).unsqueeze(2)
    choices = choices.masked_fill(missing, 0)
    before, after = choices[..., :-1].transpose(1, 2), choices[..., 1:].transpose(1, 2)
    # (B, T - 1, N, N) -> (B, T - 1, N * N) at (B, T - 1, P)
    moved = steps.flatten(2).gather(2, before * steps.size(3) + after).transpose(1, 2)
    scores = torch.cat([first.gather(1, choices[..., 0]).unsqueeze(2), moved], 2)
    position = torch.arange(choices.size(2), device=choices.device)
    unused = (position > ends.view(-1, 1, 1)) | missing
    return BestPaths(choices, _to_nats(best), _to_nats(scores.masked_fill(unused, 0)))
