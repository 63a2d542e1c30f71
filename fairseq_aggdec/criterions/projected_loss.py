"""Label-smoothed cross entropy through a vocabulary projection, without ever holding all logits.

Several predictions per position (block heads, mask slots) times a vocabulary make hundreds of megabytes of logits, and
a loss passes over them several times. A few hundred rows at a time stay in the cache, and what has no target is not
projected at all.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from torch import Tensor

ROWS = 256  # projected at a time: 8 MiB of logits with 8,000 types


class ProjectedLoss(NamedTuple):
    """Sums over all targets in nats, and the most likely type of every prediction.

    Attributes:
        loss: label-smoothed and weighted, scalar with gradients.
        nll: neither, scalar without.
        predicted: int64 as the targets, padding where they have padding.
    """

    loss: Tensor
    nll: Tensor
    predicted: Tensor


def projected_loss(
    project: Callable[[Tensor], Tensor],
    features: Tensor,
    target: Tensor,
    epsilon: float,
    pad: int,
    weights: Tensor | None = None,
) -> ProjectedLoss:
    """Loss of predictions whose logits are ``project(features)``.

    Args:
        project: (N, C) -> (N, V).
        features: (..., C).
        target: (...) int64; ``pad`` where nothing is to be learned.
        epsilon: probability that label smoothing spreads over the other types.
        pad: padding index.
        weights: of each target's loss, as ``target``, or None for 1.
    """
    there = target != pad
    weighted = (torch.ones_like(target) if weights is None else weights)[there].float()
    loss = features[..., :0].float().sum()  # 0, and part of the graph even when there is no target
    nll = loss.detach()
    predicted = [target.new_empty(0)]
    parts = (of_all.split(ROWS) for of_all in (features[there], target[there], weighted))
    for rows, wanted, weight in zip(*parts, strict=True):
        log_probs = project(rows).float().log_softmax(-1)  # (N, V)
        smoothed, plain = label_smoothed_nll_loss(
            log_probs, wanted.unsqueeze(1), epsilon, reduce=False
        )  # (N,) each
        loss, nll = loss + (weight * smoothed).sum(), nll + plain.sum().detach()
        predicted.append(log_probs.detach().max(-1).indices)
    return ProjectedLoss(
        loss, nll, torch.full_like(target, pad).masked_scatter(there, torch.cat(predicted))
    )
