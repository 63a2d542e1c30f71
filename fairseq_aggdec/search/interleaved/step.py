"""Lines 6 to 8 of Algorithm 1 (Zhang et al. 2020): from z words each to the W best continuations of a hypothesis.

A continuation is the z words of one step. Behind ``</s>`` there is no word: of two continuations that agree up to
``</s>`` only one exists, and what the model says about slots behind it, for which it was never trained, is not in
the score. (Summed up as the algorithm is printed, one finished text would come W times, ranked by words that it
does not have.)
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.rules import MaximumLength, MinimumLength, Rules, Spots, change
from fairseq_aggdec.windows.transfer import to_device

# Sums of a hypothesis from which on only the best go on after a slot. To prune costs kernels of a GPU.
MANY_SUMS = 2**10


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


def best_words(
    logits: Tensor, first: int, sentences: list[int], width: int, rules: Rules, limits: Limits
) -> tuple[Tensor, Tensor, Tensor]:
    """The best words of every slot (line 6), and the log-probabilities of ``</s>``.

    Args:
        logits: (R, z, V) fp32.
        first: the first slot.
        sentences: of each row.
        width: W.
        rules, limits: generation options; n-grams may repeat.

    Returns:
        (R, z, W) log-probabilities in nats, (R, z, W) int64 words, (R, z) of ``</s>``.
    """
    log_probs = logits.log_softmax(-1)
    log_probs.select(-1, rules.pad).fill_(-torch.inf)
    last = first + log_probs.size(1)
    slots = torch.arange(first, last, device=log_probs.device).expand(len(sentences), -1)
    changes = [*rules.penalties(Spots(slots)), *rules.bans(Spots(slots))]
    change(log_probs.flatten(0, 1), changes, slots.shape)
    ends = log_probs[..., rules.eos]  # a view
    if first < limits.floor or limits.exact or last > min(limits.ends):
        limit = to_device([[limits.ends[i]] for i in sentences], ends.device)  # (R, 1)
        spots = Spots(slots, None, limit, limits.floor, limit if limits.exact else 0)
        ends.masked_fill_(MinimumLength.holds(spots), -torch.inf)
        forced = MaximumLength.holds(spots)
        kept = ends.masked_fill(forced, 0.0) if rules.free_end else ends.clone()
        log_probs.masked_fill_(forced.unsqueeze(2), -torch.inf)
        ends.copy_(kept)
    return *log_probs.topk(width), ends


def best_steps(
    log_probs: Tensor, words: Tensor, agreement: Tensor | None, eos: int, pad: int
) -> Steps:
    """Outer addition over the slots, pruned to W where the sums get many.

    Pruning loses nothing: continuations that have ended and those that have not are kept apart, and to all of one
    kind the same is added later.

    Args:
        log_probs: (R, z, W) of the best words of each slot.
        words: (R, z, W) int64, these words.
        agreement: (R, z) log-probability of ``</s>`` in each slot, when a continuation that ended before it needs that
            too; None when slots behind the end add nothing.
        eos, pad: symbols.
    """
    rows, step, width = words.shape
    is_end = words == eos
    end = log_probs.masked_fill(~is_end, -torch.inf).amax(2)  # (R, z)
    if agreement is not None:
        # What follows an end is settled, so it counts at the end itself.
        end = end + F.pad(agreement[:, 1:].flip(1).cumsum(1).flip(1), (0, 1))
    going_on = log_probs.masked_fill(is_end, -torch.inf)
    totals, columns = _best_sums(going_on, end)
    outside = _tables(step, width, end.device, (pad, eos))[2].expand(rows, step, -1)
    return Steps(
        _read(columns, words, outside),
        _read(columns, log_probs, torch.zeros_like(end).unsqueeze(2), end.unsqueeze(2)),
        totals,
        (columns < width).sum(2),
    )


def _best_sums(going_on: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The W best continuations.

    Args:
        going_on: (R, z, W) log-probabilities, -inf for ``</s>``.
        end: (R, z) of ``</s>``.

    Returns:
        (R, W) sums; (R, W, z) columns: one of the W words, W for nothing, W + 1 for the end.
    """
    rows, step, width = going_on.shape
    words, ending, _ = _tables(step, width, end.device)
    sums, columns = going_on.new_zeros(rows, 1), words.new_zeros(1, 1, step)
    all_sums, all_columns = [], []
    for slot in range(step):
        all_sums.append(sums + end[:, slot : slot + 1])
        all_columns.append(columns + ending[slot])
        sums = (sums.unsqueeze(2) + going_on[:, slot : slot + 1]).flatten(1)  # (R, P W)
        # (1, P W, z), if pruned (R, ..)
        columns = (columns.unsqueeze(2) + words[slot]).flatten(1, 2)
        if sums.size(1) > MANY_SUMS and slot + 1 < step:
            sums, best = sums.topk(width)
            columns = _picked(columns, best)
    totals, best = torch.cat([*all_sums, sums], 1).topk(width)
    parts = [part.expand(columns.size(0), -1, -1) for part in (*all_columns, columns)]
    return totals, _picked(torch.cat(parts, 1), best)


@functools.cache
def _tables(
    step: int, width: int, device: torch.device, outside: tuple[int, int] = (0, 0)
) -> tuple[Tensor, Tensor, Tensor]:
    """Tables of what words add to the columns of a continuation (z, W, z), what an end in each slot adds (z, z),
    ``outside``."""
    slots, words = torch.arange(step, device=device), torch.arange(width, device=device)
    same_slot = slots.unsqueeze(1) == slots
    ending = same_slot * (width + 1) + (slots > slots.unsqueeze(1)) * width
    return same_slot.unsqueeze(1) * words.unsqueeze(1), ending, torch.tensor(outside, device=device)


def _picked(columns: Tensor, best: Tensor) -> Tensor:
    """Rows (R, W) of columns (R or 1, P, z) -> (R, W, z)."""
    index = best.unsqueeze(2).expand(-1, -1, columns.size(2))
    return columns.expand(len(best), -1, -1).gather(1, index)


def _read(columns: Tensor, *table: Tensor) -> Tensor:
    """Looks columns (R, W, z) up in a table (R, z, W + 2), given in parts -> (R, W, z)."""
    return torch.cat(table, 2).transpose(1, 2).gather(1, columns)
