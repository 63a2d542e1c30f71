"""Acceptance and the bifurcation: which drafted tokens stand and what a row emits."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.decoding.acceptance import NO_DRAFT, drafted_next, exact
from fairseq_aggdec.decoding.loop import Verification, judge
from fairseq_aggdec.decoding.window import Window
from fairseq_aggdec.drafters.base import Draft

EOS = 2
TOKENS = st.integers(EOS, 6)


def judged(drafts: list[list[int]], choices: list[int]) -> Verification:
    """The verdict over rows that all stand at position 0, for given choices of the verifier (one per slot)."""
    draft = Draft(drafts)
    tokens = draft.after([EOS] * len(drafts), torch.device("cpu"))
    window = Window(tokens, [0] * len(drafts), [length + 1 for length in draft.lengths])
    return judge(exact, torch.empty(0), torch.tensor(choices), draft, window, EOS)


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


def test_worked_examples() -> None:
    assert judged([[5, 6]], [5, 6, 4]).emitted == [[5, 6, 4]]
    assert judged([[5, 6]], [5, 3, 4]).emitted == [[5, 3]]
    assert judged([[]], [4]).emitted == [[4]]
    assert judged([[5, EOS, 6]], [5, EOS, 6, 6]).emitted == [[5, EOS]]
    assert judged([[5], []], [5, EOS, 3]).emitted == [[5, EOS], [3]]


@given(st.data())
def test_against_following_one_token_at_a_time(data: st.DataObject) -> None:
    drafts = data.draw(st.lists(st.lists(TOKENS, max_size=5), min_size=1, max_size=4))
    slots = sum(len(draft) + 1 for draft in drafts)
    choices = data.draw(st.lists(TOKENS, min_size=slots, max_size=slots))
    found = judged(drafts, choices)
    first = 0
    for row, draft in enumerate(drafts):
        emitted, accepted = [], 0
        for offset in range(len(draft) + 1):
            emitted.append(choices[first + offset])
            stands = offset < len(draft) and draft[offset] == emitted[-1]
            accepted += stands
            if not stands or emitted[-1] == EOS:
                break
        assert found.emitted[row] == emitted
        assert found.accepted[row] == accepted
        assert found.drafted[row] == len(draft)
        first += len(draft) + 1
