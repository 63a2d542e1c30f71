"""Whether the host launches an iteration before it knows what came of the last."""

from __future__ import annotations

import pytest

from fairseq_aggdec.budget.pace import LATENCY, Pace


def seen(iterations: int, host: float, device: float) -> Pace:
    pace = Pace()
    for _ in range(200):
        pace.launched(host)
        pace.passed(device)
        pace.ended(iterations)
    return pace


def test_nothing_is_known_at_first() -> None:
    assert Pace().ahead == 1


@pytest.mark.parametrize(
    ("iterations", "host", "device", "ahead"),
    [
        (4, 1e-4, 1.4e-3, 0),  # a few long ones: a draft each
        (40, 1e-4, 0.7e-3, 1),  # many short ones: a token each
        (1, 1e-4, 1e-3, 0),  # a batch that is over with the first
        (
            12,
            1e-4,
            11.5 * (1e-4 + LATENCY),
            0,
        ),  # eleven waits: nothing is waited for behind the last
        (12, 1e-4, 10.5 * (1e-4 + LATENCY), 1),
    ],
)
def test_waits_of_a_batch_against_one_iteration(
    iterations: int, host: float, device: float, ahead: int
) -> None:
    assert seen(iterations, host, device).ahead == ahead


def test_means_follow_what_is_seen() -> None:
    pace = seen(40, 1e-4, 1e-3)
    for _ in range(100):
        pace.ended(3)
    assert pace.iterations.mean == pytest.approx(3, rel=1e-3)
    assert pace.ahead == 0
