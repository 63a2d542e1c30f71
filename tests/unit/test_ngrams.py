"""Repeated n-grams of an output that grows: against looking through the whole output, and how much is looked at."""

from __future__ import annotations

import random
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.options.ngrams import Ngrams
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Draft
from tests.support import lines_run
from tests.unit.test_rules import repeats

START = 2
TOKENS = st.lists(st.integers(2, 4), max_size=6)
SIZES = st.integers(1, 4)


@given(st.lists(TOKENS, max_size=5), TOKENS, SIZES, st.data())
def test_an_output_that_grows(
    parts: list[list[int]], draft: list[int], size: int, data: Any
) -> None:
    ngrams, output = Ngrams(size), [START]
    for part in parts:
        output += part
        ngrams.take_up(output)
    ngrams.take_up(output)
    first = data.draw(st.integers(0, len(draft)))
    known = len(output) - 1
    expected = repeats([*output[1:], *draft], known + first, size, START)
    found = ngrams.repeats(draft, first)
    assert sorted((known + place, token) for place, token in found) == sorted(expected)
    assert len(set(found)) == len(found)


@given(st.lists(st.integers(2, 4), max_size=9), TOKENS, SIZES)
def test_a_draft_is_possible_up_to_the_first_repetition(
    output: list[int], draft: list[int], size: int
) -> None:
    ngrams = Ngrams(size)
    ngrams.take_up([START, *output])
    banned = set(repeats([*output, *draft], len(output), size, START))
    impossible = (i for i, token in enumerate(draft) if (len(output) + i, token) in banned)
    assert ngrams.possible(draft) == next(impossible, len(draft))


def test_no_token_is_drafted_that_cannot_be_accepted() -> None:
    def possible(draft: Draft, size: int) -> Draft:
        rows = [Row(0, [START, 5, 6, 7, 5], 99, 0), Row(1, [START, 5], 99, 0)]
        rules = Rules(pad=1, unk=3, eos=2, no_repeat_ngram_size=size)
        return rules.possible(draft, DecodeState(rows, 2, torch.device("cpu")))

    draft, tree = Draft([[6, 8], [6, 7]]), Draft([[6, 7], [6, 7]], [[0, 0], [0, 0]])
    assert possible(draft, 0) is possible(draft, 3) is draft
    assert possible(draft, 2).tokens == [[], [6, 7]]
    assert possible(tree, 2) is tree


def work_of_a_row(length: int) -> int:
    """Lines run to take up one token more of an output and to look at a draft behind it."""
    chance = random.Random(1)
    row = Row(0, [START, *(chance.randint(4, 60) for _ in range(length))], 10**6, 0)
    row.ngrams(3)
    row.tokens.append(7)
    return lines_run(lambda: row.ngrams(3).repeats([8, 9, 10, 11]))


def test_no_more_work_behind_a_longer_output() -> None:
    assert work_of_a_row(2000) <= work_of_a_row(100) + 30
