"""Trees of prefixes: places, words, and which prefix stands in for another."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.search.beam.budget import ALIKE, FORETOLD
from fairseq_aggdec.search.beam.rules import Table
from fairseq_aggdec.search.beam.tree import NEAR, NOTHING, ROOT, Tree
from tests.support import lines_run

START = 2


def node_of(tree: Tree, words: str) -> int:
    """The node of a prefix whose words are letters."""
    node = ROOT
    for letter in words:
        node = tree.child(node, ord(letter))
    return node


def table_of(name: str) -> Table:
    """Tables that tell which is which: the letters that may follow."""
    return [ord(letter) for letter in name], [-1.0 - i for i in range(len(name))]


def tree_of(**tables: str) -> Tree:
    """A tree with evaluated prefixes: words -> what may follow; ``_`` is the root."""
    tree = Tree(START)
    for words, name in tables.items():
        tree.evaluated(node_of(tree, words.strip("_")), table_of(name))
    tree.start_predicting()
    return tree


@given(st.lists(st.lists(st.integers(3, 6), max_size=7), max_size=20))
def test_every_prefix_is_held_once(prefixes: list[list[int]]) -> None:
    tree, nodes = Tree(START), {}
    for prefix in prefixes:
        node = ROOT
        for depth, token in enumerate(prefix, 1):
            node = tree.child(node, token)
            assert nodes.setdefault(tuple(prefix[:depth]), node) == node
    assert len(tree.tokens) == 1 + len(nodes)
    for prefix, node in nodes.items():
        assert tree.words(node) == list(prefix)
        assert (tree.depths[node], tree.tokens[node]) == (len(prefix), prefix[-1])
        assert tree.words(tree.parents[node]) == list(prefix[:-1])


@given(st.integers(0, 10**9))
def test_a_place_sees_its_ancestors_and_itself(seed: int) -> None:
    chance, tree = random.Random(seed), Tree(START)
    order = [ROOT]
    for _ in range(40):
        node = tree.child(chance.choice(order), chance.randint(3, 9))
        if node not in order:
            order.append(node)
    at = 0
    while at < len(order):  # a call after the other
        nodes = order[at : at + chance.randint(1, 9)]
        seen = tree.place(nodes)
        assert len(seen) == len(nodes)
        for node, bits in zip(nodes, seen, strict=True):
            path = [node]
            while path[-1] != ROOT:
                path.append(tree.parents[path[-1]])
            assert bits == sum(1 << order.index(other) for other in path)
        at += len(nodes)
    assert tree.places == len(order)


def test_totals_of_a_prefix() -> None:
    tree = Tree(START)
    for words, total in (("a", -1.0), ("ab", -1.5), ("b", -9.0), ("abc", -2.25)):
        tree.totals[node_of(tree, words)] = total
    assert tree.totals_of(node_of(tree, "abc")) == [-1.0, -1.5, -2.25]


def test_an_evaluated_prefix_stands_for_itself() -> None:
    tree = tree_of(_="ab", a="x", b="y")
    assert tree.predicted(node_of(tree, "b")) == table_of("y")


def test_the_child_of_what_the_parent_is_like_comes_first() -> None:
    """``bc`` is like ``ac``, so that ``bcd`` is like ``acd``, although ``d`` is nearer elsewhere."""
    tree = tree_of(_="ab", a="c", b="c", ac="d", acd="x", bd="y")
    assert tree.predicted(node_of(tree, "bcd")) == table_of("x")


def test_then_the_nearest_behind_the_same_word() -> None:
    tree = tree_of(_="abq", a="c", ac="x", q="c", qq="c", qqac="z", ab="c", abc="y")
    assert tree.predicted(node_of(tree, "bac")) == table_of("z")


def test_a_word_far_away_is_no_likeness() -> None:
    deep = "q" * (NEAR + 2)
    tree = tree_of(_="ab", a="b", **{deep + "ac": "x"})
    assert tree.predicted(node_of(tree, "bac")) == NOTHING
    near = tree_of(_="ab", a="b", **{deep[: NEAR - 1] + "ac": "x"})
    assert near.predicted(node_of(near, "bac")) == table_of("x")


def test_else_the_best_sibling_that_is_known() -> None:
    tree = tree_of(_="abc", b="x", c="y")
    assert tree.predicted(node_of(tree, "d")) == table_of("x")
    assert tree.predicted(node_of(tree, "de")) == NOTHING


def test_likenesses_are_forgotten_when_tables_have_come_in() -> None:
    tree = tree_of(_="ab", a="x")
    node = node_of(tree, "b")
    assert tree.predicted(node) == table_of("x")  # its sibling's
    tree.evaluated(node_of(tree, "ab"), table_of("y"))
    assert tree.predicted(node) == table_of("x")
    tree.start_predicting()
    assert tree.predicted(node) == table_of("y")  # ends in the same word


def test_what_is_foreseen() -> None:
    tree = tree_of(_="ab", a="c", ac="d")
    below, lost = node_of(tree, "bc"), node_of(tree, "zy")
    assert tree.foreseen(node_of(tree, "b"), set()) == ALIKE  # its parent was evaluated
    # like "ac", and its parent comes in the same call
    assert tree.foreseen(below, {node_of(tree, "b")}) == ALIKE
    assert tree.foreseen(below, set()) is None  # its parent would have no keys
    assert tree.foreseen(lost, {tree.parents[lost]}) is None  # like nothing


def test_what_is_foretold_stands_in_where_nothing_is_alike() -> None:
    tree = tree_of(_="ab", a="c")
    tree.foretold[node_of(tree, "a")] = [table_of("x"), table_of("y")]
    assert tree.predicted(node_of(tree, "a")) == table_of("c")
    # One and two words behind "a", whatever these are, and no farther; nothing behind others.
    assert [tree.predicted(node_of(tree, words)) for words in ("ac", "az", "acx", "azq")] == [
        table_of(name) for name in "xxyy"
    ]
    assert tree.predicted(node_of(tree, "acxy")) == NOTHING
    assert tree.foretold_at(node_of(tree, "bc")) is None
    # The nearest that has read counts, even where it looked less far.
    tree.foretold[node_of(tree, "ac")] = [table_of("z")]
    assert tree.predicted(node_of(tree, "acx")) == table_of("z")
    assert tree.predicted(node_of(tree, "acxz")) == NOTHING
    child, parent = node_of(tree, "azq"), node_of(tree, "az")
    assert tree.foreseen(child, {parent}) == FORETOLD
    assert tree.foreseen(child, set()) is None


@given(st.integers(0, 10**9))
def test_whatever_is_predicted_was_evaluated(seed: int) -> None:
    """It ends in the same word, or is a sibling's."""
    chance, tree = random.Random(seed), Tree(START)
    nodes = [ROOT]
    for _ in range(60):
        nodes.append(tree.child(chance.choice(nodes), chance.randint(3, 6)))
    for number, node in enumerate(dict.fromkeys(nodes)):
        if node == ROOT or chance.random() < 0.5:
            tree.evaluated(node, ([number + 3], [-1.0]))
    tree.start_predicting()
    tables = {node: table for node in nodes if (table := tree.tables[node]) is not None}
    owners = {table[0][0]: node for node, table in tables.items()}
    for node in nodes:
        found = tree.predicted(node)
        if found != NOTHING:
            owner = owners[found[0][0]]
            same_word = tree.tokens[owner] == tree.tokens[node]
            assert same_word or tree.parents[owner] == tree.parents[node]
            assert tree.tables[node] is None or owner == node


def work_of_a_likeness(length: int) -> int:
    """Lines run to find a likeness of a node whose token is everywhere in the tree."""
    tree, node = Tree(START), ROOT
    for _ in range(length):
        node = tree.child(node, 7)
        tree.evaluated(node, table_of("x"))
    tree.start_predicting()
    below = tree.child(node, 7)
    return lines_run(lambda: tree.predicted(below))


def test_no_more_work_where_a_prefix_repeats_itself() -> None:
    assert work_of_a_likeness(2000) <= work_of_a_likeness(50)
