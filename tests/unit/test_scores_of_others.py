"""Scores of error correction, repetition and simplification: as the programs of their authors (tests/origins)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.recipes.aggressive.m2 import read_m2
from scripts.recipes.aggressive.m2_score import corpus_m2
from scripts.recipes.aggressive.sari import corpus_sari
from scripts.recipes.interleaved.otem import otem, utem

PATH = Path(__file__).with_name("scores_of_others.json")
RECORDED: dict[str, list[dict[str, Any]]] = json.loads(PATH.read_text(encoding="utf-8"))


def test_maxmatch_is_that_of_the_scorer(tmp_path: Path) -> None:
    """Four digits are printed."""
    for case in RECORDED["maxmatch"]:
        (tmp_path / "gold").write_text(case["gold"], encoding="utf-8")
        hypotheses = [line.split() for line in case["hypotheses"]]
        score = corpus_m2(hypotheses, read_m2(tmp_path / "gold"))
        assert [score.precision, score.recall, score.f] == pytest.approx(case["scores"], abs=6e-5)
    assert len(RECORDED["maxmatch"]) == 40


def test_over_and_under_translation_are_those_of_the_authors() -> None:
    for case in RECORDED["otem"]:
        sides = (map(str.split, case[side]) for side in ("hypotheses", "references"))
        pairs = list(zip(*sides, strict=True))
        assert [otem(pairs), utem(pairs)] == pytest.approx(case["scores"])
    assert len(RECORDED["otem"]) == 40


def test_sari_is_that_of_easse() -> None:
    """EASSE's default, which deletes by F1. By precision, as in the paper, its numbers are others."""
    for case in RECORDED["sari"]:
        score = corpus_sari(case["source"], case["hypotheses"], case["references"])
        assert 100 * score.sari == pytest.approx(case["scores"][0])
    other = [case for case in RECORDED["sari"] if abs(case["scores"][0] - case["scores"][1]) > 0.01]
    assert len(RECORDED["sari"]) == 40 and len(other) > 30
