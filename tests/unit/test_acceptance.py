"""Acceptance and the bifurcation: which drafted tokens stand and what a row emits."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.search.acceptance import (
    NO_DRAFT,
    AtLeast,
    Distance,
    TopBeta,
    drafted_next,
    exact,
)
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.windows.window import Window

EOS, VOCABULARY = 2, 9
RULES = Rules(pad=0, unk=1, eos=EOS)
TOKENS = st.integers(EOS, 6)


def test_drafted_next_is_the_token_to_the_right_within_the_row() -> None:
    window = Window(torch.tensor([9, 5, 6, 9, 9, 7]), [0, 4, 2], [3, 1, 2])
    assert drafted_next(window).tolist() == [5, 6, NO_DRAFT, NO_DRAFT, 7, NO_DRAFT]
    assert drafted_next(Window(torch.tensor([9, 5]), [0], [2])).tolist() == [5, NO_DRAFT]
    assert drafted_next(Window(torch.tensor([9]), [3], [1])).tolist() == [NO_DRAFT]


def test_drafted_next_leaves_the_window_alone() -> None:
    window = Window(torch.tensor([9, 5, 6]), [0], [3])
    drafted_next(window)
    assert window.tokens.tolist() == [9, 5, 6]


def test_exact_accepts_the_verifiers_own_choice_only() -> None:
    accepted = exact(torch.empty(0), torch.tensor([5, 6, 7]), torch.tensor([5, 9, NO_DRAFT]))
    assert accepted.tolist() == [True, False, False]


def test_top_beta_by_hand() -> None:
    # Best to worst: 4 (0.0), 5 (-0.5), 6 (-2.0), the rest far behind; 7 is forbidden.
    logits = torch.full((1, VOCABULARY), -9.0)
    logits[0, [4, 5, 6, 7]] = torch.tensor([0.0, -0.5, -2.0, -torch.inf])

    def stands(token: int, beta: int, tolerance: float) -> bool:
        accept = TopBeta(beta, tolerance)
        return bool(accept(logits, torch.tensor([4]), torch.tensor([token])))

    assert stands(4, 1, 0.0)
    assert not stands(5, 1, 9.0)  # beta 1 is exact
    assert stands(5, 2, 0.5)
    assert not stands(5, 2, 0.4)  # too far behind
    assert not stands(6, 2, 9.0)  # third best
    assert stands(6, 3, 2.0)
    assert not stands(7, 9, torch.inf)  # forbidden
    assert not stands(NO_DRAFT, 9, torch.inf)


def verdicts(data: st.DataObject) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random logits without ties, some forbidden; the choices; a draft of several rows."""
    slots = data.draw(st.integers(1, 8))
    torch.manual_seed(data.draw(st.integers(0, 999)))
    logits = torch.randn(slots, VOCABULARY)
    logits[torch.rand(slots, VOCABULARY) < 0.2] = -torch.inf
    logits[:, EOS] = logits[:, EOS].clamp(min=-3.0)
    drafted = [data.draw(st.integers(NO_DRAFT, VOCABULARY - 1)) for _ in range(slots - 1)]
    return logits, logits.argmax(-1), torch.tensor([*drafted, NO_DRAFT])


@given(st.data())
def test_top_beta_against_sorting(data: st.DataObject) -> None:
    logits, choices, drafted = verdicts(data)
    beta, tolerance = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([0.0, 0.7, 3.0]))
    log_probs = logits.log_softmax(-1)
    expected = []
    for scores, token in zip(log_probs, drafted.tolist(), strict=True):
        best = scores.argsort(descending=True)[:beta].tolist()
        near = token in best and float(scores[best[0]] - scores[token]) <= tolerance + 1e-6
        expected.append(near and float(scores[token]) > -torch.inf)
    assert TopBeta(beta, tolerance)(logits, choices, drafted).tolist() == expected


@given(st.data())
def test_more_stands_with_larger_beta_and_tolerance(data: st.DataObject) -> None:
    logits, choices, drafted = verdicts(data)
    before = exact(logits, choices, drafted)
    assert torch.equal(TopBeta(1, 9.0)(logits, choices, drafted), before)
    for beta, tolerance in ((2, 0.5), (2, 1.0), (4, 1.0), (4, torch.inf)):
        after = TopBeta(beta, tolerance)(logits, choices, drafted)
        assert bool((after | ~before).all())
        before = after


@given(st.data())
def test_distance_against_one_token_at_a_time(data: st.DataObject) -> None:
    logits, choices, drafted = verdicts(data)
    epsilon, first_number = data.draw(st.integers(0, 3)), 4
    expected = []
    for scores, choice, token in zip(logits, choices.tolist(), drafted.tolist(), strict=True):
        numbers = choice >= first_number and token >= first_number
        near = numbers and abs(choice - token) <= epsilon and float(scores[token]) > -torch.inf
        expected.append(near or choice == token)
    assert Distance(epsilon, first_number)(logits, choices, drafted).tolist() == expected


@given(st.data())
def test_at_least_against_one_row_at_a_time(data: st.DataObject) -> None:
    logits, choices, drafted = verdicts(data)
    size = data.draw(st.integers(1, 4))
    expected, slot = [], 0
    for scores, choice, token in zip(logits, choices.tolist(), drafted.tolist(), strict=True):
        early = slot < size - 1 and token != NO_DRAFT and float(scores[token]) > -torch.inf
        expected.append(early or choice == token)
        slot = 0 if token == NO_DRAFT else slot + 1
    assert AtLeast(size, exact)(logits, choices, drafted).tolist() == expected
