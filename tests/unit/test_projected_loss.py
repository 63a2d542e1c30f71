"""The chunked loss against fairseq's own over all logits at once, in value, gradient and prediction."""

from __future__ import annotations

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from fairseq_aggdec.criterions.projected_loss import ROWS, projected_loss

PAD = 1


@pytest.mark.parametrize("count", [0, 3, ROWS + 5])
def test_against_all_logits_at_once(count: int) -> None:
    torch.manual_seed(3)
    projection = torch.nn.Linear(6, 9)
    features = torch.randn(2, count, 6, requires_grad=True)
    target = torch.randint(0, 9, (2, count))
    logits = projection(features)
    loss, nll = label_smoothed_nll_loss(
        logits.log_softmax(-1), target.unsqueeze(-1), 0.1, ignore_index=PAD
    )
    expected = torch.autograd.grad(loss, [features, *projection.parameters()])
    found = projected_loss(projection, features, target, 0.1, PAD)
    torch.testing.assert_close((found.loss, found.nll), (loss, nll))
    if count:
        gradients = torch.autograd.grad(found.loss, [features, *projection.parameters()])
        torch.testing.assert_close(gradients, expected)
    assert torch.equal(found.predicted, logits.argmax(-1).masked_fill(target == PAD, PAD))


def test_weights_are_those_of_the_sum_and_leave_the_likelihood_alone() -> None:
    torch.manual_seed(3)
    projection, features = torch.nn.Linear(6, 9), torch.randn(2, 5, 6)
    target = torch.randint(2, 9, (2, 5)).masked_fill(torch.rand(2, 5) < 0.3, PAD)
    weights = torch.rand(2, 5)
    expected = torch.zeros(())
    for feature, wanted, weight in zip(
        features.flatten(0, 1), target.flatten(), weights.flatten(), strict=True
    ):
        if wanted != PAD:
            one = projected_loss(projection, feature[None], wanted[None], 0.1, PAD)
            expected = expected + weight * one.loss
    found = projected_loss(projection, features, target, 0.1, PAD, weights)
    torch.testing.assert_close(found.loss, expected)
    assert torch.equal(found.nll, projected_loss(projection, features, target, 0.1, PAD).nll)


def test_what_has_no_target_is_not_projected() -> None:
    seen = []

    def project(rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return rows.repeat(1, 2)

    projected_loss(project, torch.randn(4, 3), torch.tensor([PAD, 2, PAD, 3]), 0.0, PAD)
    assert seen == [2]


def test_nothing_to_learn_is_still_differentiable() -> None:
    features = torch.randn(2, 3, requires_grad=True)
    projected_loss(
        torch.nn.Linear(3, 5), features, torch.tensor([PAD, PAD]), 0.1, PAD
    ).loss.backward()
    assert features.grad is not None
    assert not features.grad.any()


def test_sums_are_exact_under_autocast() -> None:
    torch.manual_seed(3)
    projection, features = torch.nn.Linear(6, 9), torch.randn(700, 6)
    target = torch.randint(2, 9, (700,))
    with torch.autocast("cpu", torch.bfloat16):
        found = projected_loss(projection, features, target, 0.0, PAD)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, found.nll, rtol=1e-6, atol=0)
