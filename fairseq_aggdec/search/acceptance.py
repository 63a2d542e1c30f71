"""Acceptance rules: which drafted tokens are accepted, as pure tensor functions over the N positions of a window.

A rule gets the verifier's logits (N, V), its choices (N,) and the token that was drafted right after each position
(N,), ``NO_DRAFT`` at the last position of a row. It returns bool (N,): that token is accepted. A row keeps its accepted
tokens up to the first rejected one.

Trees are cut to their likeliest path for a rule of somebody else; the compiled library knows those of this file and
asks them of trees, too.

Tokens that the generation options forbid have the logit -inf, so a relaxed rule must ask for a finite logit.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fairseq_aggdec.windows.transfer import sent
from fairseq_aggdec.windows.window import Window

NO_DRAFT = -1


class Acceptance(Protocol):
    """Decides which drafted tokens are accepted."""

    def __call__(self, logits: Tensor, choices: Tensor, drafted: Tensor, /) -> Tensor: ...


def drafted_next(window: Window) -> Tensor:
    """The drafted tokens (N,) as a rule gets them: that after each position."""
    if window.width == 1:
        return torch.full_like(window.tokens, NO_DRAFT)
    following = torch.roll(window.tokens, -1)
    if window.dense:
        following.view(window.rows, window.width)[:, -1:].fill_(NO_DRAFT)
    else:
        ends = torch.tensor(window.widths).cumsum(0) - 1
        following.index_fill_(0, sent(ends, following.device), NO_DRAFT)
    return following


def exact(logits: Tensor, choices: Tensor, drafted: Tensor) -> Tensor:
    """Accepts a drafted token when it is the verifier's own choice: lossless."""
    return choices == drafted


def trusting(logits: Tensor, choices: Tensor, drafted: Tensor) -> Tensor:
    """Accepts whatever is drafted (``--decoding nar``).

    Nobody verifies: the drafter reads the windows, and what it chooses at every place is emitted, up to ``</s>``.
    """
    return drafted != NO_DRAFT


@dataclass(frozen=True)
class TopBeta:
    """Accepts a drafted token among the verifier's ``beta`` best that is at most ``tolerance`` nats behind the best.

    Eq. 8 and 9 of Ge et al. (GAD++); with infinite tolerance the top-k selection of Stern et al., 5.1. With beta 1 it
    is :func:`exact`.
    """

    beta: int
    tolerance: float = math.inf

    def __call__(self, logits: Tensor, choices: Tensor, drafted: Tensor) -> Tensor:
        best = logits.gather(1, choices.unsqueeze(1))  # (N, 1)
        drafted_logits, permitted = _drafted_logits(logits, drafted)
        better = (logits > drafted_logits).sum(-1)  # tokens ahead of the drafted one: its rank
        near = (better < self.beta) & (best - drafted_logits <= self.tolerance).squeeze(1)
        return exact(logits, choices, drafted) | (near & permitted & (self.beta > 1))


@dataclass(frozen=True)
class Distance:
    """Accepts a drafted number at most ``epsilon`` away from the verifier's choice (Stern et al., 5.2).

    Attributes:
        epsilon: largest difference that is accepted.
        first_number: dictionary index of the first number; numbers have consecutive indices from there on, special
            symbols come before and must match exactly.
    """

    epsilon: int
    first_number: int

    def __call__(self, logits: Tensor, choices: Tensor, drafted: Tensor) -> Tensor:
        _, permitted = _drafted_logits(logits, drafted)
        numbers = (choices >= self.first_number) & (drafted >= self.first_number)
        near = (choices - drafted).abs() <= self.epsilon
        return exact(logits, choices, drafted) | (near & numbers & permitted)


@dataclass(frozen=True)
class AtLeast:
    """``accept``, but an iteration yields at least ``size`` tokens where the draft has as many (Stern et al., 5.3).

    The verifier's own token counts as one of them, so the first ``size - 1`` drafted tokens of a row are accepted.
    """

    size: int
    accept: Acceptance

    def __call__(self, logits: Tensor, choices: Tensor, drafted: Tensor) -> Tensor:
        _, permitted = _drafted_logits(logits, drafted)
        early = _depths(drafted) < self.size
        return self.accept(logits, choices, drafted) | (early & permitted)


def split(accept: Acceptance) -> tuple[int, Acceptance]:
    """Tells how many tokens an iteration gains at least, and the rule for the others."""
    return (accept.size, accept.accept) if isinstance(accept, AtLeast) else (0, accept)


def known(accept: Acceptance) -> dict[str, float] | None:
    """The rule as the compiled library has it, ``Acceptance`` of ``structs.h``; None: a rule of somebody else."""
    least, rule = split(accept)
    if rule is exact:
        return {"least": least}
    if rule is trusting:
        return {"trusts": True}
    if type(rule) in (TopBeta, Distance):
        return {"least": least, **vars(rule)}
    return None


def _depths(drafted: Tensor) -> Tensor:
    """1-based index of each drafted token within its row."""
    index = torch.arange(drafted.numel(), device=drafted.device)
    after_end = torch.roll(drafted == NO_DRAFT, 1)  # a row's last position drafts nothing
    return index - torch.where(after_end, index, 0).cummax(0).values + 1


def _drafted_logits(logits: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """The logit of each drafted token (N, 1) and whether there is one that may be emitted (N,)."""
    values = logits.gather(1, drafted.clamp(min=0).unsqueeze(1))
    return values, (drafted != NO_DRAFT) & (values.squeeze(1) > -math.inf)
