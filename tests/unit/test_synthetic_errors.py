"""Synthetic errors: what is learnt from pairs, what a slip may do, the command's two files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from scripts.recipes.aggressive.synthetic_errors import corrupt, learn_confusions, main, misspell

LETTERS = "абвгґ"
WORDS = st.text("абвґАБ", min_size=1, max_size=8)
SENTENCES = st.lists(WORDS | st.sampled_from(".,?"), min_size=1, max_size=12).map(" ".join)
SEEDS = st.integers(0, 2**32)


def test_confusions_are_replaced_words_and_missing_words() -> None:
    sources = ["я є студентом", "він пішов до дому", "він пішов дому"]
    targets = ["я є студент", "він пішов до будинку", "він пішов до будинку"]
    assert learn_confusions(sources, targets) == {
        "студент": ["студентом"],
        "будинку": ["дому", "дому"],  # as often as seen
        "до": [""],
    }


def test_rare_confusions_can_be_left_out() -> None:
    pairs = (["a x", "a x", "a y"], ["a b", "a b", "a b"])
    assert learn_confusions(*pairs, least=2) == {"b": ["x", "x"]}


@given(WORDS, SEEDS)
def test_a_slip_is_one_edit(word: str, seed: int) -> None:
    wrong = misspell(word, LETTERS, random.Random(seed))
    assert wrong
    assert OSA.distance(word, wrong) <= 1  # insertion, deletion, replacement or swap


@given(SENTENCES, st.floats(0, 1), SEEDS)
def test_corruption_is_repeatable_and_never_empty(sentence: str, rate: float, seed: int) -> None:
    noisy = corrupt(sentence, rate, {"а": ["б", ""]}, LETTERS, random.Random(seed))
    assert noisy == corrupt(sentence, rate, {"а": ["б", ""]}, LETTERS, random.Random(seed))
    assert noisy.split()
    assert noisy == " ".join(noisy.split())


def test_share_of_wrong_words_follows_the_rate() -> None:
    words = [f"слово{i}" for i in range(20)]
    rng = random.Random(1)
    intact = 0
    for _ in range(200):
        noisy = corrupt(" ".join(words), 0.1, {}, LETTERS, rng).split()
        intact += len(set(words) & set(noisy))
    assert 0.88 < intact / 4000 < 0.93  # a doubled word is still there


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    path = tmp_path / "clean"
    path.write_text("".join(f"слово{i} , і ще одне .\n" for i in range(50)), encoding="utf-8")
    return path


def test_command_writes_aligned_copies(clean: Path, tmp_path: Path) -> None:
    outputs = []
    for name in ("a", "b"):
        arguments = ["--clean", str(clean), "--copies", "2", "--rate", "0.3", "--seed", "5"]
        main([*arguments, "--output", str(tmp_path / name)])
        outputs.append(
            [(tmp_path / f"{name}.{side}").read_text("utf-8") for side in ("src", "tgt")]
        )
    assert outputs[0] == outputs[1]
    noisy, right = (text.splitlines() for text in outputs[0])
    assert right == clean.read_text("utf-8").splitlines() * 2
    assert len(noisy) == 100
    assert noisy[:50] != noisy[50:]
    assert all(noisy)


def test_command_refuses_pairs_of_different_length(clean: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("одне\n", encoding="utf-8")
    pairs = ["--pairs", str(clean), str(short)]
    with pytest.raises(SystemExit, match="--pairs have 50 and 1 lines"):
        main(["--clean", str(clean), *pairs, "--output", str(tmp_path / "out")])
