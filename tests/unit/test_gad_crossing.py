"""The picture of where drafts begin to pay: its curve, and how sentences are gathered into points."""

from __future__ import annotations

import math

import pytest

from fairseq_aggdec.budget.price import CallPrice
from scripts.recipes.gad.crossing import Sentence, crossing, parts, promised
from scripts.recipes.paper_plots import origin

PRICE = CallPrice(((1.0, 2.0), (4.0, 5.0), (16.0, 29.0)), draft=0.5, slot=0.25)
SENTENCE = Sentence(words=20.0, encoder=4.0, drafter=1.0)


def test_the_curve_by_hand() -> None:
    """Greedy search takes 4 + 20 * 2 ms; ten iterations with three drafted tokens 4 + 1 + 10 * (5 + 0.5 + 0.75)."""
    assert promised(PRICE, SENTENCE, 3, 2.0) == pytest.approx(44.0 / 67.5)


@pytest.mark.parametrize("tree", [1, 3, 7])
def test_drafts_pay_from_the_crossing_on(tree: int) -> None:
    tokens = crossing(PRICE, SENTENCE, tree)
    assert promised(PRICE, SENTENCE, tree, tokens) == pytest.approx(1.0)
    assert promised(PRICE, SENTENCE, tree, tokens + 0.1) > 1.0


def test_a_drafter_that_takes_longer_to_read_than_all_calls_never_pays() -> None:
    assert crossing(PRICE, Sentence(20.0, 4.0, 40.0), 3) == math.inf


def test_parts_have_sums_and_not_means() -> None:
    slow, fast = (10, 10, 1.0, 2.0), (10, 2, 3.0, 1.0)
    assert parts([fast, slow], 2) == [(1.0, 0.5), (5.0, 3.0)]
    assert parts([fast, slow], 9) == parts([fast, slow], 2)
    assert parts([fast, slow], 1) == [(20 / 12, 4.0 / 3.0)]


@pytest.mark.parametrize("tool", ["aggdec bench", "python -m scripts.recipes.gad.crossing"])
def test_a_plot_names_the_set_and_not_the_tool(tool: str) -> None:
    record = {"command": f"{tool} work/data --path work/model.pt", "title": ""}
    assert origin(record) == ["model work/model.pt", "test set of work/data"]
