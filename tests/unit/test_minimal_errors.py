"""Errors of contrastive pairs, one by one; and what is counted of them."""

from __future__ import annotations

import pytest

from scripts.recipes.interleaved import contrast
from scripts.recipes.interleaved.minimal_errors import (
    AGREEMENT,
    NEGATED,
    NOT,
    NOUN_PHRASE,
    PARTICLE,
    UNSEEN,
    Pair,
    errors,
)

KNOWN = {"Straße", "street", "standing", "playing", "Männer", "schauen"}


@pytest.mark.parametrize(
    ("language", "kind", "right", "wrong", "distance"),
    [
        ("en", AGREEMENT, "Two men are standing.", "Two men is standing.", 1),
        ("en", AGREEMENT, "A man in red plays here.", "A man in red play here.", 3),
        (
            "de",
            AGREEMENT,
            "Der Hund auf dem Gras läuft.",
            None,
            None,
        ),  # "läuft." is not taken apart
        ("de", AGREEMENT, "Ein Mann geht weg.", "Ein Mann gehen weg.", 1),
        ("en", NOUN_PHRASE, "Two old men sit.", "Two old man sit.", None),
        ("en", NOUN_PHRASE, "The men sit.", None, None),
        ("en", NOUN_PHRASE, "I see a dog.", "I see a dogs.", None),
        ("de", NOUN_PHRASE, "Ein Mann sitzt.", "Eine Mann sitzt.", None),
        ("de", NOUN_PHRASE, "Er hat einen Hut.", "Er hat eine Hut.", None),
        ("de", NOUN_PHRASE, "Er ist ein großer Mann.", None, None),
        ("en", NEGATED, "A man sees an owl.", "No man sees an owl.", None),
        ("de", NEGATED, "Er hat einen Hut.", "Er hat keinen Hut.", None),
        ("en", NOT, "A man is here.", "A man is not here.", None),
        ("de", NOT, "Leute sind hier.", "Leute sind nicht hier.", None),
        ("de", PARTICLE, "Sie schauen sich etwas an.", "Sie schauen sich etwas auf.", None),
        ("en", PARTICLE, "They look at it an.", None, None),
        ("en", UNSEEN, "A man in Hamburg.", "A man in Hamubrg.", None),
        ("en", UNSEEN, "A man on the street.", None, None),
        ("en", UNSEEN, "A man in 123456.", None, None),
    ],
)
def test_a_rule(
    language: str, kind: str, right: str, wrong: str | None, distance: int | None
) -> None:
    found = [pair for pair in errors(right, language, KNOWN) if pair.kind == kind]
    assert found == ([] if wrong is None else [Pair(kind, right, wrong, distance)])


def test_every_error_changes_something() -> None:
    text = (
        "Zwei Hunde und ein Kind stehen am Kölner Dom, sie sind nass und warten dort auf etwas zu."
    )
    found = list(errors(text, "de", KNOWN))
    assert {pair.kind for pair in found} == {AGREEMENT, NOUN_PHRASE, NEGATED, NOT, PARTICLE, UNSEEN}
    assert all(pair.right != pair.wrong for pair in found)


def test_what_is_counted() -> None:
    pairs = [
        Pair(AGREEMENT, "a", "b", 1),
        Pair(AGREEMENT, "a", "b", 9),
        Pair(NEGATED, "a", "b"),
        Pair(AGREEMENT, "a", "b", 5),
    ]
    rows = contrast.counted("one", pairs, [True, False, True, True])
    found = {row.kind: (row.right, row.pairs) for row in rows}
    assert found == {
        "all": (3, 4),
        NEGATED: (1, 1),
        AGREEMENT: (2, 3),
        f"{AGREEMENT}, distance 1": (1, 1),
        f"{AGREEMENT}, distance 5 or more": (1, 2),
    }
    assert contrast.markdown(rows).splitlines()[2] == "| all | 4 | 75.0 |"
