"""F0.5 of corrections: an edit replaces a span of source tokens, and is right if span and text agree.

The edits of a hypothesis and those of each annotator are read off a shortest word alignment. For each sentence the
annotator counts who gives the best F0.5 of the corpus so far (the rule of the CoNLL-2014 scorer).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

BETA = 0.5  # precision counts twice as much as recall


class TokenEdit(NamedTuple):
    """Replace the source tokens from ``start`` up to ``end`` (exclusive) by ``correction``."""

    start: int
    end: int
    correction: tuple[str, ...]


class EditCounts(NamedTuple):
    """Numbers of edits; ``correct`` are both in the hypothesis and in the reference."""

    correct: int
    proposed: int
    gold: int

    def plus(self, other: EditCounts) -> EditCounts:
        return EditCounts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def precision(self) -> float:
        """Fraction 0 to 1; nothing proposed is nothing wrong."""
        return self.correct / self.proposed if self.proposed else 1.0

    @property
    def recall(self) -> float:
        """Fraction 0 to 1; nothing to find is nothing missed."""
        return self.correct / self.gold if self.gold else 1.0

    def f_measure(self, beta: float = BETA) -> float:
        """Weighted harmonic mean of precision and recall, fraction 0 to 1."""
        denominator = beta * beta * self.gold + self.proposed
        return (1 + beta * beta) * self.correct / denominator if denominator else 1.0


def extract_edits(source: Sequence[str], target: Sequence[str]) -> list[TokenEdit]:
    """The edits that turn ``source`` into ``target``, in order, from a shortest word alignment.

    Neighbouring changes are one edit, because where one ends and the next begins is a choice of the
    aligner; only words replaced one for one (``a b`` by ``x y``) are separate edits, so that a
    hypothesis with one of two right gets half.
    """
    edits: list[TokenEdit] = []
    for start, end, begin, finish in _changed_blocks(source, target):
        if end - start == finish - begin:
            edits += [
                TokenEdit(start + i, start + i + 1, (target[begin + i],))
                for i in range(end - start)
            ]
        else:
            edits.append(TokenEdit(start, end, tuple(target[begin:finish])))
    return edits


def _changed_blocks(
    source: Sequence[str], target: Sequence[str]
) -> Iterator[tuple[int, int, int, int]]:
    """(source start, source end, target start, target end) between the words that stay."""
    i = j = 0
    for block in Levenshtein.opcodes(source, target).as_matching_blocks():
        if (i, j) != (block.a, block.b):
            yield i, block.a, j, block.b
        i, j = block.a + block.size, block.b + block.size


def corpus_counts(
    sources: Iterable[Sequence[str]],
    hypotheses: Iterable[Sequence[str]],
    references: Sequence[Iterable[Sequence[str]]],
) -> EditCounts:
    """Edits of all sentences (token lists); ``references`` has one corpus for each annotator."""
    total = EditCounts(0, 0, 0)
    for source, hypothesis, *corrected in zip(sources, hypotheses, *references, strict=True):
        proposed = set(extract_edits(source, hypothesis))
        options = []
        for reference in corrected:
            gold = set(extract_edits(source, reference))
            counts = EditCounts(len(proposed & gold), len(proposed), len(gold))
            options.append(total.plus(counts))
        total = max(options, key=_annotator_rank)
    return total


def _annotator_rank(counts: EditCounts) -> tuple[float, int, int]:
    """Best F of the corpus so far, then most correct edits, then the fewest in the gold."""
    return counts.f_measure(), counts.correct, -counts.gold


def read_sentences(path: Path | str) -> list[str]:
    """Lines of a text file without surrounding spaces; only a newline ends a line."""
    with open(path, encoding="utf-8", newline="\n") as lines:
        return [line.strip() for line in lines]
