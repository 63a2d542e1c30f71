"""SARI: a value published with another implementation, and sentences worked by hand."""

from __future__ import annotations

import pytest

from scripts.recipes.aggressive.sari import corpus_sari

SOURCE = "About 95 species are currently accepted ."
REFERENCES = [
    "About 95 species are currently known .",
    "About 95 species are now accepted .",
    "95 species are now accepted .",
]


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
    score = corpus_sari(["a b"], ["a c"], [["a c"]])
    expected = (1 / 4, 2 / 4, 2 / 4)
    assert (score.keep, score.delete, score.add) == pytest.approx(expected)
    assert score.sari == pytest.approx(sum(expected) / 3)


def test_deletion_is_f1() -> None:
    """The reference deletes b and c, the hypothesis only b: precision 1, recall 1/2, F1 2/3.

    Bigrams: source "a b", "b c", "c d"; the hypothesis keeps "c d", so it deletes two of the three:
    F1 = 2 * 1 * 2/3 / (5/3). Trigrams and the 4-gram are deleted by both sides.
    """
    corpus = corpus_sari(["a b c d"], ["a c d"], [["a d"]])
    assert corpus.delete == pytest.approx((2 / 3 + 4 / 5 + 1 + 1) / 4)
