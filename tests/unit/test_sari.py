"""SARI: values published with the metric, sentences worked by hand, and general laws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.recipes.aggressive.sari import corpus_sari, main, sentence_sari

SOURCE = "About 95 species are currently accepted ."
REFERENCES = [
    "About 95 species are currently known .",
    "About 95 species are now accepted .",
    "95 species are now accepted .",
]


@pytest.mark.parametrize(
    ("hypothesis", "published"),
    [
        ("About 95 you now get in .", 0.2682782411698074),
        ("About 95 species are now agreed .", 0.5889995423074248),
        ("About 95 species are currently agreed .", 0.5071608864657479),
    ],
)
def test_sentence_values_of_the_authors_script(hypothesis: str, published: float) -> None:
    assert sentence_sari(SOURCE, hypothesis, REFERENCES).sari == pytest.approx(published)


def test_corpus_value_published_with_easse() -> None:
    """Two sentences with three references each, from the manual of that toolkit."""
    score = corpus_sari(
        [SOURCE, "The cat perched on the mat ."],
        ["About 95 you now get in .", "Cat on mat ."],
        [
            [REFERENCES[0], "The cat sat on the mat ."],
            [REFERENCES[1], "The cat is on the mat ."],
            [REFERENCES[2], "The cat sat ."],
        ],
    )
    assert 100 * score.sari == pytest.approx(33.17472563619544)


def test_hand_worked_operations() -> None:
    """Source "a b", reference "a c", hypothesis "a c": kept a, deleted b, added c.

    Orders 3 and 4 have no n-grams, and order 2 has nothing kept: the scores of order 1 are
    1 each, those of order 2 are 1 for deleting "a b" and adding "a c".
    """
    expected = (1 / 4, 2 / 4, 2 / 4)
    for score in (sentence_sari("a b", "a c", ["a c"]), corpus_sari(["a b"], ["a c"], [["a c"]])):
        assert (score.keep, score.delete, score.add) == pytest.approx(expected)
        assert score.sari == pytest.approx(sum(expected) / 3)


def test_deletion_is_precision_for_a_sentence_and_f1_for_a_corpus() -> None:
    """The reference deletes b and c, the hypothesis only b: precision 1, recall 1/2, F1 2/3.

    Bigrams: source "a b", "b c", "c d", all deleted by both sides (recall 1). Trigrams and the
    4-gram likewise, so the four orders give 2/3, 1, 1, 1.
    """
    source, hypothesis, reference = "a b c d", "a c d", "a d"
    assert sentence_sari(source, hypothesis, [reference]).delete == pytest.approx(1.0)
    # bigrams: the hypothesis keeps "c d", so it deletes two of the three: F1 = 2 * 1 * 2/3 / (5/3)
    corpus = corpus_sari([source], [hypothesis], [[reference]])
    assert corpus.delete == pytest.approx((2 / 3 + 4 / 5 + 1 + 1) / 4)


def test_copying_scores_only_by_keeping() -> None:
    score = corpus_sari(["a b c d e"], ["a b c d e"], [["a b c d e"]])
    assert (score.keep, score.delete, score.add) == (1.0, 0.0, 0.0)


def test_case_is_ignored() -> None:
    assert sentence_sari("A b", "a C", ["a c"]) == sentence_sari("a b", "a c", ["a c"])


def test_every_reference_needs_every_sentence() -> None:
    with pytest.raises(ValueError, match="zip"):
        corpus_sari(["a", "b"], ["a", "b"], [["a"]])


SENTENCES = st.lists(st.sampled_from("abcde"), max_size=8).map(" ".join)


@given(SENTENCES, SENTENCES, st.lists(SENTENCES, min_size=1, max_size=3))
def test_scores_are_fractions_and_repeated_references_change_nothing(
    source: str, hypothesis: str, references: list[str]
) -> None:
    score = corpus_sari([source], [hypothesis], [[text] for text in references])
    for value in (score.sari, score.keep, score.delete, score.add):
        assert 0 <= value <= 1 + 1e-9
    doubled = corpus_sari([source], [hypothesis], [[text] for text in references * 2])
    assert doubled.sari == pytest.approx(score.sari)


@given(st.permutations(list("abcdefgh")), st.permutations(list("mnopqrst")))
def test_perfect_hypothesis_with_all_operations_scores_one(
    kept: list[str], others: list[str]
) -> None:
    """Keep, delete and add n-grams of every order, exactly as the one reference does."""
    source = " ".join(kept[:4] + others[:4])
    reference = " ".join(kept[:4] + others[4:])
    assert corpus_sari([source], [reference], [[reference]]).sari == pytest.approx(1.0)
    assert sentence_sari(source, reference, [reference]).sari == pytest.approx(1.0)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {"s": "a b\nc\n", "h": "a c\nc\n", "r": "a c\nc\n", "short": "a\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    main([str(tmp_path / name) for name in "shr"])
    assert capsys.readouterr().out.startswith("sari ")
    main([*(str(tmp_path / name) for name in "shr"), "--json"])
    assert set(json.loads(capsys.readouterr().out)) == {"sari", "keep", "delete", "add"}
    with pytest.raises(SystemExit):
        main([str(tmp_path / name) for name in ("s", "h", "short")])
    assert "number of lines" in capsys.readouterr().err
