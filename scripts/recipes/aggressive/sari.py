"""SARI: quality of a simplification, from the n-grams it keeps, deletes and adds.

Xu et al. (2016), "Optimizing Statistical Machine Translation for Text Simplification", section 4,
over a corpus, as the literature on WikiLarge reports it. An n-gram (n = 1 to 4) is rightly kept,
deleted or added where the references do the same to the source. SARI is the mean of the F1 of
keeping, deleting and adding, as EASSE computes it by default. Xu et al. score deleting by its
precision instead, which gives other numbers. Counts are summed over the corpus before any fraction
is taken.

A fraction counts 0 where nothing is to be kept, deleted or added (0/0), so a perfect copy of the
reference scores less than 1 if, say, the reference adds nothing. Words are compared in lower case
and split at spaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MAX_ORDER = 4
Ngrams = Counter[tuple[str, ...]]


@dataclass(frozen=True)
class SariScore:
    """Fractions (0 to 1); the papers print them times 100."""

    sari: float
    keep: float
    delete: float
    add: float


@dataclass
class _Counts:
    """For one operation and one n: n-grams of the system, of the references, of both."""

    system: float = 0.0
    reference: float = 0.0
    correct: float = 0.0

    def include(self, system: Ngrams, reference: Ngrams) -> None:
        """Add up the counts of one sentence."""
        self.system += system.total()
        self.reference += reference.total()
        self.correct += (system & reference).total()

    def f1(self) -> float:
        return 2 * self.correct / (self.system + self.reference) if self.correct else 0.0


def _ngrams(sentence: str, order: int) -> Ngrams:
    words = sentence.lower().split()
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def _operations(
    source: str, hypothesis: str, references: Sequence[str], order: int
) -> dict[str, tuple[Ngrams, Ngrams]]:
    """What the system and what the references keep, delete and add, for n-grams of one order.

    Counts of source and hypothesis are multiplied by the number of references, so that a deletion
    is as right as the share of references that make it. Additions count once for each type.
    """
    n_references = len(references)
    before, after = (
        Counter({gram: count * n_references for gram, count in _ngrams(text, order).items()})
        for text in (source, hypothesis)
    )
    wanted: Ngrams = Counter()
    for reference in references:
        wanted += _ngrams(reference, order)
    return {
        "keep": (before & after, before & wanted),
        "delete": (before - after, before - wanted),
        "add": (Counter(after.keys() - before.keys()), Counter(wanted.keys() - before.keys())),
    }


def corpus_sari(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> SariScore:
    """Corpus SARI; ``references[r][s]`` is the r-th reference of sentence s."""
    orders = [{name: _Counts() for name in ("keep", "delete", "add")} for _ in range(MAX_ORDER)]
    for source, hypothesis, *wanted in zip(sources, hypotheses, *references, strict=True):
        for order, counts in enumerate(orders, start=1):
            for name, grams in _operations(source, hypothesis, wanted, order).items():
                counts[name].include(*grams)
    keep, delete, add = (
        sum(order[name].f1() for order in orders) / MAX_ORDER for name in ("keep", "delete", "add")
    )
    return SariScore((keep + delete + add) / 3, keep, delete, add)
