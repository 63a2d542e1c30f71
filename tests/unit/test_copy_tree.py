"""Copies that branch: the likeliest paths through a text and its known edits, and what is learned of edits."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.budget.account import NodeBudget
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED, CopyText
from fairseq_aggdec.drafters.copy.copy_tree import (
    REMEMBERED,
    CopyTree,
    CopyTrees,
    Edit,
    EditedText,
    Edits,
    Pending,
    grow,
)

EOS = 2
WORDS = st.integers(4, 7)


def knowing(*edits: tuple[int, Edit, int], reached: int) -> Edits:
    """A memory of edits of tokens, each so many times, of tokens that came up equally often."""
    known = Edits()
    for token, edit, times in edits:
        known.reached[token] = reached
        known.copied[token] = reached - sum(other for one, _, other in edits if one == token)
        for _ in range(times):
            known.add(token, edit)
    return known


def paths(tree: CopyTree) -> list[tuple[int, ...]]:
    """The tokens on the way to every node."""
    found: list[tuple[int, ...]] = [()]
    for step, parent in zip(tree.steps, tree.parents, strict=True):
        found.append((*found[parent], step.token))
    return found[1:]


def every(
    text: EditedText, place: int, longest: int, chance: float = 1.0, edited: bool = False
) -> list[tuple[float, tuple[int, ...]]]:
    """All paths from a place of a text, with their chances."""
    found: list[tuple[float, tuple[int, ...]]] = []
    for share, step in text.steps(place, edited) if longest else ():
        further = every(text, step.place, longest - 1, chance * share, step.edit is not None)
        found += [(chance * share, (step.token,))]
        found += [(other, (step.token, *path)) for other, path in further]
    return found


def test_the_worked_example() -> None:
    she, knew, that, he, comma = range(10, 15)
    edits = knowing((that, Edit(comma, 0), 1), reached=1)
    text = EditedText([EOS, she, knew, that, he], edits, 0.9, 0.9)
    tree = grow(text, [(0, 1.0)], 9, 7)
    longest = {path for path in paths(tree) if path[-1] == he}
    assert longest == {(she, knew, that, he), (she, knew, comma, that, he)}
    assert text.steps(4) == []


@given(
    text=st.lists(st.sampled_from([4, 5, 6, 7, NEVER_DRAFTED]), max_size=6),
    nodes=st.integers(1, 30),
    longest=st.integers(0, 5),
    seed=st.integers(0, 50),
)
def test_the_likeliest_nodes_are_taken(
    text: list[int], nodes: int, longest: int, seed: int
) -> None:
    chooser = random.Random(seed)
    # Other tokens than copies, and other ones for each token: no path is found in two ways.
    known = [
        (token, Edit(10 * token + number, chooser.randrange(3)), chooser.randint(1, 2))
        for token in (4, 5, 6)
        for number in range(2)
    ]
    asked = EditedText([EOS, *text], knowing(*known, reached=9), 0.8, 0.9)
    tree, possible = grow(asked, [(0, 1.0)], longest, nodes), every(asked, 0, longest)
    taken, chances = paths(tree), {path: chance for chance, path in possible}
    assert all(parent < node for node, parent in enumerate(tree.parents, 1))
    assert len(taken) == len(set(taken)) == min(nodes, len(possible))
    best = sorted(chances.values(), reverse=True)[: len(taken)]
    assert [chances[path] for path in taken] == pytest.approx(best)


@pytest.mark.parametrize("fixed_cost", [0.3, 2.0, 10.0])
def test_nodes_are_taken_while_they_bring_more_than_they_cost(fixed_cost: float) -> None:
    edits = knowing((5, Edit(9, 1), 3), (7, Edit(9, 0), 2), reached=9)
    asked = EditedText([EOS, 4, 5, 6, 7, 4, 5, 6, 7], edits, 0.9, 0.9)
    chances = sorted((chance for chance, _ in every(asked, 0, 99)), reverse=True)
    rates = [(1 + sum(chances[:size])) / (fixed_cost + size) for size in range(1, len(chances))]
    taken = len(grow(asked, [(0, 1.0)], 99, 99, fixed_cost).steps)
    assert rates[taken - 1] == pytest.approx(max(rates))


def test_chances_of_tokens_and_of_rows() -> None:
    """A token that was seldom replaced is likelier to be copied than others, also where a row is edited a lot."""
    edits = knowing((5, Edit(9, 1), 3), (6, Edit(9, 1), 1), reached=40)
    mean = 0.9
    assert edits.copy(7, mean, mean) == pytest.approx(mean)
    assert edits.copy(7, 0.6, mean) == pytest.approx(0.6)
    assert edits.copy(5, mean, mean) == pytest.approx((37 + 4 * mean) / 44)
    for row, most in itertools.product(
        (0.0, 0.5, 1.0), repeat=2
    ):  # nothing or all that was seen stood
        assert 0.0 < edits.copy(5, row, most) < 1.0
    assert 0.6 < edits.copy(5, 0.6, mean) < edits.copy(6, 0.6, mean) < edits.copy(6, mean, mean) < 1
    steps = EditedText([EOS, 5], edits, mean, mean).steps(0)
    assert [chance for chance, _ in steps] == pytest.approx([edits.copy(5, mean, mean), 3 / 41])
    assert EditedText([EOS, 5], edits, mean, mean).steps(0, copies_only=True) == steps[:1]


def test_no_token_stands_twice_behind_the_same_one() -> None:
    """The edit that writes the next token of the text is its copy."""
    edits = knowing((4, Edit(4, 0), 5), reached=5)
    tree = grow(EditedText([EOS, 4, 5], edits, 0.9, 0.9), [(0, 1.0)], 9, 9)
    assert len(set(zip(tree.parents, paths(tree), strict=True))) == len(tree.steps)


@pytest.mark.parametrize(
    ("output", "passed"),
    [
        ([], None),
        ([6], None),  # not enough to tell
        ([5, 6], 0),
        ([6, 7], 1),
        ([7, EOS], 2),
        ([EOS], 3),
        ([9, 9], None),
    ],
)
def test_how_much_of_the_text_an_edit_stands_for(output: list[int], passed: int | None) -> None:
    text = [EOS, 4, 5, 6, 7]  # 5 is rejected, 9 is written
    found = next(Pending(2, 2).passed(text, [EOS, 4, 9, *output], EOS), None)
    assert found == passed


def test_edits_that_are_seldom_are_forgotten() -> None:
    edits = Edits()
    for _ in range(2):
        edits.add(4, Edit(5, 1))
    for written in range(10, 30):
        edits.add(4, Edit(written, 1))
    assert len(edits.of(4)) == REMEMBERED
    assert dict(edits.of(4))[Edit(5, 1)] > dict(edits.of(4))[Edit(29, 1)]
    assert edits.of(9) == []


# -- what is drafted of a sentence whose output is known


def decode(trees: CopyTrees, source: Sequence[int], output: Sequence[int], stands: float) -> int:
    """How many iterations a sentence takes."""
    text = CopyText(source, EOS, "aligned")
    trees.start(1)
    written, iterations = [EOS], 0
    while len(written) <= len(output):
        gained = len(written) - text.followed
        if gained:
            text.follow(written, gained)
        tree = trees.grow(0, text, (stands, 0.9), 99, 5.0)
        path = [0]
        for node, (step, parent) in enumerate(zip(tree.steps, tree.parents, strict=True), 1):
            expected = output[len(written) - 1 + len(path) - 1 :][:1]
            if parent == path[-1] and [step.token] == expected:
                path.append(node)
        stood = len(path) - 1
        written += output[len(written) - 1 :][: stood + 1]
        drafted, accepted = trees.observe(0, text, path, written)
        assert accepted == stood <= drafted <= stood + 1
        if stood:
            assert text.followed == len(written) - 1
        iterations += 1
    return iterations


def test_what_was_replaced_before_is_drafted() -> None:
    """Two sentences with the same three errors: a word is replaced, one is put in, two become one."""
    source = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
    output = [10, 51, 12, 13, 14, 52, 15, 16, 53, 19, 20, EOS]
    trees = CopyTrees(NodeBudget(64), EOS)
    first = decode(trees, source, output, 0.9)
    assert first >= 4
    assert dict(trees.edits.of(11)) == {Edit(51, 1): 0.5}
    assert dict(trees.edits.of(15)) == {Edit(52, 0): 0.5}
    assert dict(trees.edits.of(17)) == {Edit(53, 2): 0.5}
    assert decode(trees, source, output, 0.9) == 1
    for token, edit in ((11, Edit(51, 1)), (15, Edit(52, 0)), (17, Edit(53, 2))):  # it was again
        assert trees.edits.known[token][edit] == 2
        assert trees.edits.reached[token] == 2 + trees.edits.copied[token]
        assert trees.edits.copied[token] == (token == 15)  # behind what was put in


def test_what_is_not_replaced_any_more_loses_its_chance() -> None:
    trees = CopyTrees(NodeBudget(64, learned=True), EOS)
    decode(trees, [10, 11, 12, 13], [10, 51, 12, 13, EOS], 0.9)
    for _ in range(20):
        decode(trees, [10, 11, 12, 13], [10, 11, 12, 13, EOS], 0.9)
    ((_, chance),) = trees.edits.of(11)
    assert chance < 0.05
    text = CopyText([10, 11, 12, 13], EOS, "aligned")
    trees.start(1)
    tree = trees.grow(0, text, (0.9, 0.9), 99, 5.0)
    assert [step.edit for step in tree.steps] == [None] * 4


def test_where_the_output_stands_is_asked_in_several_ways() -> None:
    """Behind a word of which it is not known whether it was put in or replaced one."""
    trees = CopyTrees(NodeBudget(64), EOS)
    for source, output in (([10, 11, 12], [10, 51, 11, 12]), ([13, 14, 15], [13, 52, 15, 15])):
        decode(trees, source, [*output, EOS], 0.9)
    text = CopyText([20, 21, 22, 23], EOS, "aligned")
    trees.start(1)
    text.follow([EOS, 20, 59], 2)
    assert text.guessed
    firsts = {
        step.token
        for tree in [trees.grow(0, text, (0.9, 0.9), 99, 5.0)]
        for step, parent in zip(tree.steps, tree.parents, strict=True)
        if parent == 0
    }
    assert firsts >= {21, 22}


@given(
    st.lists(st.tuples(st.lists(WORDS, max_size=9), st.lists(WORDS, max_size=9)), max_size=5),
    st.booleans(),
)
def test_any_texts_and_outputs(pairs: list[tuple[list[int], list[int]]], learned: bool) -> None:
    """Whatever was learned, an iteration gains a token at least."""
    trees = CopyTrees(NodeBudget(20, learned=learned), EOS)
    for source, output in pairs:
        assert decode(trees, source, [*output, EOS], 0.8) <= len(output) + 1


def test_rows_that_stay_keep_what_is_known_of_them() -> None:
    trees = CopyTrees(NodeBudget(9), EOS)
    trees.start(3)
    for row, token in enumerate((10, 11, 12)):
        text = CopyText([token] * (row + 1), EOS, "aligned")
        trees.grow(row, text, (0.9, 0.9), 9, math.inf)
    trees.keep_rows([2, 0])
    assert [len(tree.steps) for tree in trees.trees] == [3, 1]
