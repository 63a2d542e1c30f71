"""MaxMatch scores: hand-worked sentences and a slow obvious search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.recipes.aggressive.m2 import AnnotatedSentence, Edit
from scripts.recipes.aggressive.m2_score import (
    Counts,
    Lattice,
    Vertex,
    best_counts,
    corpus_m2,
    edit_lattice,
)


def _edit(start: int, end: int, *corrections: str) -> Edit:
    return Edit(start, end, "X", tuple(tuple(text.split()) for text in corrections), 0)


def _sentence(text: str, *annotators: Sequence[Edit]) -> AnnotatedSentence:
    return AnnotatedSentence(tuple(text.split()), {a: tuple(e) for a, e in enumerate(annotators)})


def _counts(source: str, hypothesis: str, *gold: Edit, max_unchanged: int = 2) -> Counts:
    return best_counts(edit_lattice(source.split(), hypothesis.split()), gold, max_unchanged)


# The example of the CoNLL-2014 scorer's manual: precision, recall and F0.5 are 4/5 each.
MANUAL = [
    _sentence("The cat sat at mat .", [_edit(3, 4, "on"), _edit(4, 4, "the", "a")]),
    _sentence("The dog .", [_edit(1, 2, "dogs")], []),
    _sentence(
        "Giant otters is an apex predator .",
        [_edit(2, 3, "are"), _edit(3, 4, ""), _edit(5, 6, "predators")],
        [_edit(1, 2, "otter")],
    ),
]
MANUAL_HYPOTHESES = ["A cat sat on the mat .", "The dog .", "Giant otters are apex predator ."]


def test_manual_example() -> None:
    score = corpus_m2([text.split() for text in MANUAL_HYPOTHESES], MANUAL)
    assert (score.correct, score.proposed, score.gold) == (4, 5, 5)
    assert score.precision == score.recall == pytest.approx(0.8)
    assert score.f == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("source", "hypothesis", "gold", "expected"),
    [
        # a replacement, an insertion, a deletion of the gold, each found
        ("a b c", "a X c", [_edit(1, 2, "X")], (1, 1, 1)),
        ("a b c", "a b X c", [_edit(2, 2, "X")], (1, 1, 1)),
        ("a b c", "a c", [_edit(1, 2, "")], (1, 1, 1)),
        # the right place with the wrong text
        ("a b c", "a X c", [_edit(1, 2, "Y")], (0, 1, 1)),
        # an alternative correction counts
        ("a b c", "a Y c", [_edit(1, 2, "X", "Y")], (1, 1, 1)),
        # a gold phrase with an unchanged word inside needs merging across it
        ("a b c d", "X b Y d", [_edit(0, 3, "X b Y")], (1, 1, 1)),
        # the same edit in two parts is found in two parts
        ("a b c d", "X b Y d", [_edit(0, 1, "X"), _edit(2, 3, "Y")], (2, 2, 2)),
        # without gold, changes with at most two kept words between them are one proposed edit
        ("a b c d", "X b c Y", [], (0, 1, 0)),
        ("a b c d e", "X b c d Y", [], (0, 2, 0)),
        # two words replaced by two: one phrase or two, as the gold has it
        ("a b c", "X Y c", [_edit(0, 2, "X Y")], (1, 1, 1)),
        ("a b c", "X Y c", [_edit(0, 1, "X"), _edit(1, 2, "Y")], (2, 2, 2)),
        # a gold insertion is found once, though the hypothesis makes it twice
        ("a b", "a x x b", [_edit(1, 1, "x")], (1, 2, 1)),
        # a replacement seen as deletion and insertion (shortest path for replacement cost 2)
        ("a b", "X a", [_edit(0, 0, "X"), _edit(1, 2, "")], (2, 2, 2)),
        ("", "", [], (0, 0, 0)),
        ("", "a b", [_edit(0, 0, "a b")], (1, 1, 1)),
        ("a b", "", [_edit(0, 2, "")], (1, 1, 1)),
    ],
)
def test_hand_worked_counts(
    source: str, hypothesis: str, gold: list[Edit], expected: tuple[int, int, int]
) -> None:
    assert _counts(source, hypothesis, *gold) == expected


def test_max_unchanged_limits_merging() -> None:
    gold = _edit(0, 4, "X b c Y")
    assert _counts("a b c d", "X b c Y", gold) == (1, 1, 1)
    assert _counts("a b c d", "X b c Y", gold, max_unchanged=1) == (0, 2, 1)


def test_annotator_with_the_better_corpus_f_is_chosen() -> None:
    sentences = [_sentence("a b", [_edit(0, 1, "X")], [_edit(1, 2, "Y")])] * 2
    score = corpus_m2([["a", "Y"], ["X", "b"]], sentences)
    assert (score.precision, score.recall, score.f) == (1.0, 1.0, 1.0)


def test_nothing_to_correct_and_nothing_corrected_is_perfect() -> None:
    score = corpus_m2([["a"]], [_sentence("a", [])])
    assert (score.precision, score.recall, score.f) == (1.0, 1.0, 1.0)


WORDS = st.sampled_from(["a", "b", "c"])
Arc = tuple[Vertex, Vertex, int, bool]  # begin, end, single steps in it, an unchanged word


def _walks(lattice: Lattice, begin: Vertex, n_kept: int) -> Iterator[tuple[Vertex, int]]:
    """Ends and lengths of all walks with at most so many kept words."""
    for end in lattice.steps[begin]:
        left = n_kept - lattice.keeps(begin, end)
        if left >= 0:
            yield end, 1
            yield from ((last, 1 + length) for last, length in _walks(lattice, end, left))


def _slow_arcs(lattice: Lattice, max_unchanged: int = 2) -> list[Arc]:
    """Unchanged words and all phrase edits, each spelt out."""
    arcs: list[Arc] = []
    for begin, ends in lattice.steps.items():
        arcs += [(begin, end, 1, True) for end in ends if lattice.keeps(begin, end)]
        lengths: dict[Vertex, int] = {}
        for end, length in _walks(lattice, begin, max_unchanged):
            lengths[end] = min(length, lengths.get(end, length))
        arcs += [
            (begin, end, length, False)
            for end, length in lengths.items()
            if lattice.source[begin[0] : end[0]] != lattice.hypothesis[begin[1] : end[1]]
        ]
    return arcs


def _paths(arcs: Sequence[Arc], vertex: Vertex, end: Vertex) -> Iterator[list[Arc]]:
    if vertex == end:
        yield []
    for arc in arcs:
        if arc[0] == vertex:
            yield from ([arc, *rest] for rest in _paths(arcs, arc[1], end))


def _slow_counts(lattice: Lattice, gold: Sequence[Edit]) -> Counts:
    """Look at every path, and match its edits with the gold from left to right."""
    costs = []
    for path in _paths(_slow_arcs(lattice), (0, 0), (len(lattice.source), len(lattice.hypothesis))):
        free, found, steps, others = 0, 0, 0, 0
        for begin, end, n_steps, kept in path:
            hits = [
                index
                for index in range(free, len(gold))
                if not kept
                and (gold[index].start, gold[index].end) == (begin[0], end[0])
                and lattice.hypothesis[begin[1] : end[1]] in gold[index].corrections
            ]
            if hits:
                free, found = hits[0] + 1, found + 1
            else:
                steps, others = steps + n_steps, others + (not kept)
        costs.append((-found, steps, others))
    found, _, others = min(costs)
    return Counts(-found, others - found, len(gold))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(WORDS, max_size=4),
    st.lists(WORDS, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2), st.lists(WORDS, max_size=2)), max_size=3
    ),
)
def test_best_path_equals_exhaustive_search(
    source: list[str], hypothesis: list[str], raw_gold: list[tuple[int, int, list[str]]]
) -> None:
    gold = sorted(
        (
            Edit(start, start + length, "X", (tuple(text),), 0)
            for start, length, text in raw_gold
            if start + length <= len(source)
        ),
        key=lambda edit: (edit.start, edit.end),
    )
    lattice = edit_lattice(source, hypothesis)
    assert best_counts(lattice, gold) == _slow_counts(lattice, gold)


def test_a_runaway_hypothesis_is_no_burden() -> None:
    """Nothing in common, so that the lattice is full: 6,000 vertices, millions of phrase edits."""
    source = [f"s{i}" for i in range(30)]
    hypothesis = [f"h{i}" for i in range(200)]
    gold = [Edit(3, 4, "X", (("h100",),), 0)]
    assert best_counts(edit_lattice(source, hypothesis), gold) == (1, 3, 1)
