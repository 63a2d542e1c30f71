"""Scores of the papers against hand-worked cases and slow references."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections import Counter
from math import exp, log
from pathlib import Path

import pytest

from scripts.recipes import text_scores
from scripts.recipes.text_scores import ScoreError, split_compounds


@pytest.mark.parametrize(
    ("tokens", "split"),
    [
        ("a well-known tree", "a well ##AT##-##AT## known tree"),
        ("a - b -c d-", "a - b -c d-"),
        ("one-two-three", "one ##AT##-##AT## two ##AT##-##AT## three"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # what the papers' script does: matches do not overlap
        ("x--y", "x ##AT##-##AT## -y"),
    ],
)
def test_compounds_are_split_as_the_papers_script_does(tokens: str, split: str) -> None:
    assert split_compounds(tokens) == split


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_compounds_are_split_as_perl_does() -> None:
    """The line of fairseq's scripts/compound_split_bleu.sh, on random words."""
    draw = random.Random(1)
    lines = ["".join(draw.choices("ab- ", k=draw.randint(1, 30))) for _ in range(200)]
    command = ["perl", "-ple", r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"]
    original = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, check=True, text=True
    )
    assert [split_compounds(line) for line in lines] == original.stdout.splitlines()


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """BLEU as in Papineni et al. 2002, without smoothing."""
    right, total = Counter[int](), Counter[int]()
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        h, r = hypothesis.split(), reference.split()
        for n in range(1, 5):
            left = Counter(tuple(r[i : i + n]) for i in range(len(r) - n + 1))
            for i in range(len(h) - n + 1):
                total[n] += 1
                right[n] += left[tuple(h[i : i + n])] > 0
                left[tuple(h[i : i + n])] -= 1
    lengths = [sum(len(line.split()) for line in lines) for lines in (hypotheses, references)]
    penalty = min(0.0, 1 - lengths[1] / lengths[0])
    return 100 * exp(penalty + sum(log(right[n] / total[n]) for n in range(1, 5)) / 4)


def test_compound_bleu_is_that_of_multi_bleu_on_split_tokens() -> None:
    hypotheses = ["the well-known old tree is here now .", "two dogs see a half-open house today"]
    references = ["the well-known tree is here now .", "two dogs see the half-built house , today"]
    split = [[split_compounds(line) for line in x] for x in (hypotheses, references)]
    found, _ = text_scores.compound_bleu(hypotheses, references)
    assert found == pytest.approx(multi_bleu(*split))
    # The compound that is half right counts for something.
    assert found != pytest.approx(multi_bleu(hypotheses, references))


def test_sacre_bleu_and_its_signature() -> None:
    score, signature = text_scores.sacre_bleu(["A dog, and a cat."], ["A dog, and a cat."])
    assert score == pytest.approx(100)
    assert "tok:13a" in signature
    assert "tok:none" in text_scores.sacre_bleu(["a"], ["a"], "none")[1]


def test_rouge_hand_worked() -> None:
    """Unigrams 4 of 5, bigrams 2 of 4, longest common subsequence 4 of 5 on both sides."""
    scores = text_scores.rouge(["The cat sat. It ate."], ["The cat sat. They ate."])
    assert scores == pytest.approx({"ROUGE-1": 80, "ROUGE-2": 50, "ROUGE-L": 80})


def test_rouge_l_does_not_mind_the_order_of_sentences_and_stems_words() -> None:
    swapped = text_scores.rouge(["Dogs barked. Rain fell."], ["Rain fell. Dogs barked."])
    assert swapped["ROUGE-L"] == pytest.approx(100)
    assert text_scores.rouge(["dogs barked"], ["dog barking"])["ROUGE-1"] == pytest.approx(100)
    mean = text_scores.rouge(["a dog", "no"], ["a dog", "yes"])
    assert mean["ROUGE-1"] == pytest.approx(50)


def test_best_hypotheses_in_the_order_of_the_set(tmp_path: Path) -> None:
    path = tmp_path / "generate.txt"
    path.write_text(
        "S-1\tx\nH-1\t-0.5\tone\nH-1\t-0.7\tworse\nH-0\t-0.1\tzero\ttab\nD-0\t-0.1\tno\n"
    )
    assert text_scores.generated(path) == ["zero\ttab", "one"]
    path.write_text("H-0\t-1\ta\nH-2\t-1\tb\n")
    with pytest.raises(ScoreError, match=r"missing: \[1\]"):
        text_scores.generated(path)
    path.write_text("")
    with pytest.raises(ScoreError, match="0 hypotheses"):
        text_scores.generated(path)


def test_as_many_hypotheses_as_references() -> None:
    for metric in (text_scores.sacre_bleu, text_scores.compound_bleu, text_scores.rouge):
        with pytest.raises(ScoreError, match="1 hypotheses for 2 references"):
            metric(["a"], ["a", "b"])
