"""Where prefixes stand in a text: what CopyText says of one output, for every prefix of a tree."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.drafters.copy.copy_paths import CopyPaths
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED, CopyText
from fairseq_aggdec.methods.options.variants import VARIANTS
from fairseq_aggdec.search.beam.tree import ROOT, Tree
from tests.support import lines_run

EOS = 2


@pytest.mark.parametrize("match", VARIANTS["iad-match"].choices)
@given(st.lists(st.integers(3, 6), max_size=12), st.integers(0, 10**9))
def test_a_prefix_stands_where_its_output_does(match: str, source: list[int], seed: int) -> None:
    chance, tree, paths = random.Random(seed), Tree(EOS), CopyPaths(source, EOS, match)
    nodes = [ROOT]
    for _ in range(30):
        above = chance.choice(nodes)
        copied = paths.behind(tree, above, 1)
        token = copied[0] if copied and chance.random() < 0.7 else chance.randint(3, 7)
        node = tree.child(above, token)
        nodes.append(node)
        text, output = CopyText(source, EOS, match), [EOS]
        for word in tree.words(node):
            output.append(word)
            text.follow(output, 1)
        assert paths.behind(tree, node, 99) == text.copy(99)


def test_nothing_is_drafted_behind_what_must_not_be() -> None:
    paths, tree = CopyPaths([5, 6, NEVER_DRAFTED, 7], EOS, "aligned"), Tree(EOS)
    assert paths.beginning == paths.behind(tree, ROOT, 9) == [5, 6]


def test_the_work_of_an_output_is_linear_in_it() -> None:
    """However often it leaves a text that repeats itself."""

    def work(length: int) -> int:
        tree, paths = Tree(EOS), CopyPaths([5, 6, 7] * length, EOS, "aligned")

        def follow() -> None:
            node = ROOT
            for index in range(length):
                node = tree.child(node, 5 + index % 3 if index % 10 else 6)
                paths.behind(tree, node, 4)

        return lines_run(follow)

    assert work(800) <= 2.2 * work(400)
