"""Minimal errors in German and English captions, in the style of Lingeval97 (Sennrich 2017).

Each rule changes one word of a reference, by small tables of words and without a parser, so that only captions which it
is sure of give a pair. Kinds have the names of Lingeval97. "unseen word" stands for its transliteration of names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

AGREEMENT = "subject-verb agreement"
NOUN_PHRASE = "noun phrase agreement"
NEGATED = "polarity, ein to kein"
NOT = "polarity, not inserted"
PARTICLE = "verb particle"
UNSEEN = "unseen word"

# Singular and plural of a verb.
VERBS = {
    "en": "is are, was were, has have, stands stand, sits sit, walks walk, plays play, runs run, wears wear, "
    "holds hold, looks look, rides ride, jumps jump, works work, talks talk, watches watch, takes take",
    "de": "ist sind, war waren, hat haben, steht stehen, sitzt sitzen, geht gehen, spielt spielen, läuft laufen, "
    "trägt tragen, hält halten, macht machen, fährt fahren, springt springen, schaut schauen, arbeitet arbeiten",
}
# Singular and plural of a noun that a caption begins with.
NOUNS = {
    "en": "man men, woman women, boy boys, girl girls, child children, person people, dog dogs, kid kids, "
    "player players, lady ladies, worker workers, guy guys",
    "de": "Mann Männer, Frau Frauen, Junge Jungen, Kind Kinder, Hund Hunde, Person Personen, Spieler Spieler, "
    "Arbeiter Arbeiter, Mädchen Mädchen",
}
NOT_WORD = {"en": "not", "de": "nicht"}
COUNTS = {"a", "an", "one", "two", "three", "four", "five", "several", "many", "some"}
# Another gender, in the same case.
GENDERS = {"ein": "eine", "eine": "ein", "einen": "eine", "einem": "einer", "einer": "einem"}
PARTICLES = ("an", "auf", "aus", "ab", "ein", "zu", "vor", "nach", "weg", "hin")
BEFORE_A_NOUN = 3  # words in which a number or an article is looked for
LETTERS = 6  # of a word that is misspelt


def pairs_of(table: str) -> dict[str, str]:
    """Word -> the word in the other number, both ways."""
    found = {}
    for pair in table.split(","):
        one, many = pair.split()
        if one != many:
            found |= {one: many, many: one}
    return found


OTHER_VERB = {language: pairs_of(table) for language, table in VERBS.items()}
OTHER_NOUN = {language: pairs_of(table) for language, table in NOUNS.items()}
SUBJECTS = {language: set(table.replace(",", "").split()) for language, table in NOUNS.items()}
LANGUAGES = tuple(VERBS)


@dataclass(frozen=True)
class Pair:
    """A reference and what became of it.

    Attributes:
        distance: agreement: from the subject's noun to the verb, in words; 1 if it follows. Else None.
    """

    kind: str
    right: str
    wrong: str
    distance: int | None = None


def errors(text: str, language: str, known: Collection[str]) -> Iterator[Pair]:
    """Every error that can be made of a reference, one of a kind at most.

    Args:
        text: as people read it, not tokenised.
        language: ``de`` or ``en``.
        known: words of the training set; others are misspelt.
    """
    words = text.split(" ")
    for kind, rule in RULES.items():
        found = rule(words, language, known)
        if found is not None:
            place, word, distance = found
            wrong = " ".join([*words[:place], word, *words[place + 1 :]])
            yield Pair(kind, text, wrong, distance)


# Place of the word, what it becomes, distance.
Change = tuple[int, str, int | None] | None


def bare(word: str) -> str:
    """A word without the marks around it."""
    return word.strip(".,;:!?\"'()")


def agreement(words: list[str], language: str, known: Collection[str]) -> Change:
    """The first verb behind the first subject gets the other number."""
    subject = next((i for i, word in enumerate(words) if bare(word) in SUBJECTS[language]), None)
    if subject is None:
        return None
    for place in range(subject + 1, len(words)):
        other = OTHER_VERB[language].get(words[place])
        if other is not None:
            return place, other, place - subject
    return None


def noun_phrase(words: list[str], language: str, known: Collection[str]) -> Change:
    """German: an article of another gender before a noun. English: a noun of another number behind a numeral."""
    for place, word in enumerate(words):
        if language == "de":
            other = GENDERS.get(word.lower())
            follows = words[place + 1 : place + 2]
            if other is not None and follows and follows[0][:1].isupper():
                return place, _cased(other, word), None
        elif bare(word) in OTHER_NOUN["en"]:
            before = words[max(0, place - BEFORE_A_NOUN) : place]
            if any(one.lower() in COUNTS for one in before):
                return place, word.replace(bare(word), OTHER_NOUN["en"][bare(word)]), None
    return None


def negated(words: list[str], language: str, known: Collection[str]) -> Change:
    """The first indefinite article becomes its negation."""
    for place, word in enumerate(words):
        if language == "de" and word.lower() in GENDERS:
            return place, _cased("k" + word.lower(), word), None
        if language == "en" and word.lower() in ("a", "an"):
            return place, _cased("no", word), None
    return None


def not_inserted(words: list[str], language: str, known: Collection[str]) -> Change:
    """``not`` behind the first form of "to be"."""
    forms = ("is", "are") if language == "en" else ("ist", "sind")
    place = next((i for i, word in enumerate(words) if word in forms), None)
    return None if place is None else (place, f"{words[place]} {NOT_WORD[language]}", None)


def particle(words: list[str], language: str, known: Collection[str]) -> Change:
    """German: the separated particle at the end becomes the next one of the list."""
    last = bare(words[-1])
    if language != "de" or last not in PARTICLES:
        return None
    other = PARTICLES[(PARTICLES.index(last) + 1) % len(PARTICLES)]
    return len(words) - 1, words[-1].replace(last, other), None


def unseen(words: list[str], language: str, known: Collection[str]) -> Change:
    """Two neighbouring letters are swapped in the first long word that the training set lacks."""
    for place, word in enumerate(words):
        plain = bare(word)
        if len(plain) < LETTERS or plain in known or not re.fullmatch(r"[^\W\d_]+", plain):
            continue
        for i in range(len(plain) // 2, len(plain) - 1):
            if plain[i] != plain[i + 1]:
                swapped = plain[:i] + plain[i + 1] + plain[i] + plain[i + 2 :]
                return place, word.replace(plain, swapped), None
    return None


def _cased(word: str, like: str) -> str:
    return word.capitalize() if like[:1].isupper() else word


RULES: dict[str, Callable[[list[str], str, Collection[str]], Change]] = {
    AGREEMENT: agreement,
    NOUN_PHRASE: noun_phrase,
    NEGATED: negated,
    NOT: not_inserted,
    PARTICLE: particle,
    UNSEEN: unseen,
}
