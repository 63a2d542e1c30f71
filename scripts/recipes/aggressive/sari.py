"""SARI: quality of a simplification, from the n-grams it keeps, deletes and adds.

Xu et al. (2016), "Optimizing Statistical Machine Translation for Text Simplification", section 4.
An n-gram (n = 1 to 4) is rightly kept, deleted or added where the references do the same to the
source. SARI is the mean of the F1 of keeping, the F1 of adding, and a score of deleting:

- :func:`sentence_sari`, the paper's own definition and script: each sentence by itself, deletion by
  precision alone (deleting too much hurts more than deleting too little), fractions averaged over
  n-gram types.
- :func:`corpus_sari`, which the literature on WikiLarge reports: counts summed over the corpus
  before any fraction is taken, deletion by F1.

Both count 0 where nothing is to be kept, deleted or added (0/0), so a perfect copy of the reference
scores less than 1 if, say, the reference adds nothing. Words are compared in lower case and split
at spaces. As a command: ``python -m scripts.recipes.aggressive.sari SOURCE HYPOTHESES REFERENCE...``
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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

    def precision(self) -> float:
        return _ratio(self.correct, self.system)

    def f1(self) -> float:
        return _f1(self.precision(), _ratio(self.correct, self.reference))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _f1(precision: float, recall: float) -> float:
    return _ratio(2 * precision * recall, precision + recall)


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
    scores = [{name: counts.f1() for name, counts in order.items()} for order in orders]
    return _mean_score(scores)


def sentence_sari(source: str, hypothesis: str, references: Sequence[str]) -> SariScore:
    """SARI of one sentence, as in the script of Xu et al."""
    return _mean_score(
        [
            _sentence_scores(_operations(source, hypothesis, references, order))
            for order in range(1, MAX_ORDER + 1)
        ]
    )


def _sentence_scores(operations: dict[str, tuple[Ngrams, Ngrams]]) -> dict[str, float]:
    """Scores of one order: every n-gram type weighs the same, however often it occurs."""
    keep, wanted_keep = operations["keep"]
    delete, wanted_delete = operations["delete"]
    added = _Counts()
    added.include(*operations["add"])
    return {
        "keep": _f1(_type_mean(keep, wanted_keep), _type_mean(wanted_keep, keep)),
        "delete": _type_mean(delete, wanted_delete),
        "add": added.f1(),
    }


def _type_mean(grams: Ngrams, others: Ngrams) -> float:
    """Mean over the types of ``grams`` of the share of each that is in ``others`` too."""
    common = grams & others
    return _ratio(sum(count / grams[gram] for gram, count in common.items()), len(grams))


def _mean_score(orders: Sequence[dict[str, float]]) -> SariScore:
    """Mean over the orders, then over the three operations."""
    keep, delete, add = (
        sum(scores[name] for scores in orders) / len(orders) for name in ("keep", "delete", "add")
    )
    return SariScore((keep + delete + add) / 3, keep, delete, add)


def main(argv: Sequence[str] | None = None) -> None:
    """Print corpus SARI (times 100) of tokenised text files with one sentence a line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.recipes.aggressive.sari", description=main.__doc__
    )
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("hypotheses", metavar="HYPOTHESES")
    parser.add_argument("references", metavar="REFERENCE", nargs="+")
    parser.add_argument("--json", action="store_true", help="print one JSON object of fractions")
    args = parser.parse_args(argv)
    names = [args.source, args.hypotheses, *args.references]
    texts = [Path(name).read_text(encoding="utf-8").rstrip("\n").split("\n") for name in names]
    if len({len(text) for text in texts}) > 1:
        sizes = ", ".join(f"{name}: {len(text)}" for name, text in zip(names, texts, strict=True))
        parser.exit(2, f"error: the files differ in their number of lines ({sizes})\n")
    score = corpus_sari(texts[0], texts[1], texts[2:])
    if args.json:
        print(json.dumps(asdict(score)))
    else:
        print(" ".join(f"{name} {100 * value:.2f}" for name, value in asdict(score).items()))


if __name__ == "__main__":
    main()
