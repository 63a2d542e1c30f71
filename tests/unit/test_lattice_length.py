"""Target lengths: the regression line, rounding, the window and its borders."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.lattice.length import LengthModel

PAIRS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=2, max_size=30)


@given(PAIRS)
def test_the_line_has_the_least_squares(pairs: list[tuple[int, int]]) -> None:
    source, target = np.array(pairs).T
    model = LengthModel.fit(source, target)
    if len(set(source.tolist())) == 1:
        assert model.slope == 0
        assert model.intercept == pytest.approx(target.mean())
        return
    slope, intercept = np.polyfit(source, target, 1)
    assert model.slope == pytest.approx(slope, abs=1e-6)
    assert model.intercept == pytest.approx(intercept, abs=1e-4)


def test_a_line_through_all_pairs_is_found() -> None:
    source = np.arange(1, 20)
    model = LengthModel.fit(source, 2 * source + 3)
    assert model.predict(torch.tensor([1, 7, 100])).tolist() == [5, 17, 203]


def test_halves_are_rounded_up_and_nothing_is_shorter_than_one() -> None:
    model = LengthModel(0.5, -2.0)
    assert model.predict(torch.tensor([0, 4, 6, 7, 9])).tolist() == [1, 1, 1, 2, 3]


def test_the_window_is_cut_at_one_and_at_the_longest() -> None:
    window = LengthModel(1.0, 0.0).window(torch.tensor([2, 5, 9]), 3, longest=10)
    assert window.shortest.tolist() == [1, 2, 6]
    assert window.longest.tolist() == [5, 8, 10]


def test_a_window_of_zero_is_the_predicted_length() -> None:
    window = LengthModel(1.0, 1.0).window(torch.tensor([2, 50]), 0, longest=20)
    assert window.shortest.tolist() == window.longest.tolist() == [3, 20]


def test_the_record_gives_the_model_back() -> None:
    model = LengthModel(0.9, 1.25)
    assert LengthModel.from_record(asdict(model)) == model
