"""Lines 6 to 8 of Algorithm 1 (Zhang et al. 2020): from z words each to the W best continuations of a hypothesis.

A continuation is the z words of one step. Behind ``</s>`` there is no word: of two continuations that agree up to
``</s>`` only one exists, and what the model says about slots behind it, for which it was never trained, is not in
the score. (Summed up as the algorithm is printed, one finished text would come W times, ranked by words that it
does not have.)
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Steps:
    """The W best continuations of R hypotheses, best first.

    Attributes:
        words: (R, W, z) int64, padding behind ``</s>``.
        scores: (R, W, z) log-probabilities, 0 behind ``</s>``.
        totals: (R, W) their sums; -inf where there is no further continuation.
        ends: (R, W) slot of ``</s>``, z where the hypothesis goes on.
    """

    words: Tensor
    scores: Tensor
    totals: Tensor
    ends: Tensor


def best_steps(log_probs: Tensor, words: Tensor, agreement: Tensor, eos: int, pad: int) -> Steps:
    """Outer addition over the slots, pruned to W after each.

    Pruning loses nothing: continuations that have ended and those that have not are kept apart, and to all of one
    kind the same is added later.

    Args:
        log_probs: (R, z, W) of the best words of each slot.
        words: (R, z, W) int64, these words.
        agreement: (R, z) what each slot adds to a continuation that ended before it: nothing, or the log-probability of
            ``</s>`` there when all slots behind it must agree.
        eos, pad: symbols.
    """
    rows, step, width = words.shape
    is_end = words == eos
    # What follows an end is settled, so it counts at the end itself.
    settled = F.pad(
        agreement[:, 1:].flip(1).cumsum(1).flip(1), (0, 1)
    )  # (R, z) sum over later slots
    end = log_probs.masked_fill(~is_end, -torch.inf).amax(2) + settled  # (R, z)
    going_on = log_probs.masked_fill(is_end, -torch.inf)
    # A continuation is a column of each slot: one of the W words, "nothing" or "end".
    nothing, at_end = width, width + 1
    paths = words.new_zeros(rows, 1, 0)
    sums = log_probs.new_zeros(rows, 1)
    all_paths, all_sums = [], []
    for slot in range(step):
        closing = words.new_full((rows, paths.size(1), step - slot), nothing)
        closing[:, :, 0] = at_end
        all_paths.append(torch.cat([paths, closing], 2))
        all_sums.append(sums + end[:, slot : slot + 1])
        outer = sums.unsqueeze(2) + going_on[:, slot].unsqueeze(1)  # (R, P, W)
        sums, best = outer.flatten(1).topk(width)
        parents = (best // width).unsqueeze(2).expand(-1, -1, slot)
        paths = torch.cat([paths.gather(1, parents), (best % width).unsqueeze(2)], 2)
    totals, best = torch.cat([*all_sums, sums], 1).topk(width)
    index = best.unsqueeze(2).expand(-1, -1, step)
    columns = torch.cat([*all_paths, paths], 1).gather(1, index)  # (R, W, z)
    return Steps(
        _read(columns, words, words.new_full((rows, step), pad), words.new_full((rows, step), eos)),
        _read(columns, log_probs, torch.zeros_like(end), end),
        totals,
        (columns < nothing).sum(2),
    )


def _read(columns: Tensor, table: Tensor, nothing: Tensor, end: Tensor) -> Tensor:
    """Looks columns (R, W, z) up in a table (R, z, W) with two columns (R, z) more -> (R, W, z)."""
    whole = torch.cat([table, nothing.unsqueeze(2), end.unsqueeze(2)], 2)
    return whole.gather(2, columns.transpose(1, 2)).transpose(1, 2)
