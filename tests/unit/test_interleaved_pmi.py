"""Mutual information of words written at once: perplexities against plain sums, pairs that do not fit refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.data.interleaving import Geometry
from scripts.recipes.interleaved import pmi
from tests.support import make_model, make_task
from tests.unit.test_interleaved_transformer import TARGETS, batch

SCRIPT = vars(pmi)
Pair, check_twins, log_perplexity = SCRIPT["Pair"], SCRIPT["check_twins"], SCRIPT["log_perplexity"]
PAD = 1


@pytest.mark.parametrize("directions", [1, 2])
def test_log_perplexity_is_the_mean_over_all_tokens(directions: int) -> None:
    model = make_model(
        make_task(), 5, "interleaved_transformer", directions=directions, words_per_direction=2
    )
    samples = [batch(TARGETS[:1]), batch(TARGETS[1:])]
    scores = []
    for sample in samples:
        for row, target in enumerate(sample["target"].tolist()):
            alone: Any = {
                name: tensor[row : row + 1] for name, tensor in sample["net_input"].items()
            }
            log_probs = model(**alone)[0][0].log_softmax(-1).detach()
            scores += [float(log_probs[i, w]) for i, w in enumerate(target) if w != PAD]
    found = log_perplexity(model, samples, PAD)
    assert found == pytest.approx(-sum(scores) / len(scores), abs=1e-5)


def test_the_number_of_the_paper() -> None:
    pair = Pair("left to right", 2, math.log(6.95), math.log(4.04))
    row = SCRIPT["markdown"]([pair]).splitlines()[-1]
    assert row == "| left to right | 2 | 4.04 | 6.95 | 0.542 | 0.236 |"


@pytest.mark.parametrize(
    ("parallel", "twin", "message"),
    [
        (Geometry(2, 1), Geometry(2, 1), "writes 2 words per step, not one"),
        (Geometry(), Geometry(), "its first model writes one word per step"),
        (Geometry(2, 1), Geometry(), "different orders"),
        (Geometry(2, 1), Geometry(2, 1, one_by_one=True, middle_to_side=True), "different orders"),
    ],
)
def test_pairs_that_do_not_compare(parallel: Geometry, twin: Geometry, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        check_twins("name", parallel, twin)


def test_pairs_that_compare() -> None:
    check_twins("name", Geometry(1, 2), Geometry())
    check_twins("name", Geometry(2, 2), Geometry(2, 1, one_by_one=True))


def test_files_are_looked_for_first(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    with pytest.raises(SystemExit, match="give NAME=PARALLEL,TWIN"):
        SCRIPT["parsed"]("name=a.pt")
    with pytest.raises(SystemExit, match="there is no file"):
        SCRIPT["parsed"](f"name={tmp_path}/a.pt,{tmp_path}/b.pt")
    both = f"{tmp_path}/a.pt,{tmp_path}/a.pt"
    assert SCRIPT["parsed"](f"n={both}") == ("n", *both.split(","))
