"""Rules: generation options at every position of a window against a plain reading of what stock does at one step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.search.rules import Rules, repeats_on_device

PAD, EOS, UNK, VOCABULARY = 1, 2, 3, 9
RULES = Rules(PAD, UNK, EOS)
FAR = 99


def repeats(
    output: Sequence[int], first: int, size: int, start: int | None = None
) -> list[tuple[int, int]]:
    """Tokens that would complete an n-gram which occurred before: a plain reading of the option.

    Args:
        output: output tokens without the start symbol.
        first: output index from which on to look.
        size: the n of the n-grams.
        start: the start symbol, at which an n-gram may begin: a word where the caller names another than ``</s>``.

    Returns:
        (output index i, token) for every token that must not follow at i after ``output[:i]``, where
        first <= i <= len(output).
    """
    seen: dict[tuple[int, ...], set[int]] = {}
    if start is not None and 1 < size <= len(output) + 1:
        seen[(start, *output[: size - 2])] = {output[size - 2]}
    found = []
    for index in range(size - 1, len(output) + 1):
        context = tuple(output[index - size + 1 : index])
        followers = seen.setdefault(context, set())
        if index >= first:
            found += [(index, token) for token in followers]
        if index < len(output):
            followers.add(output[index])
    return found


def test_a_start_symbol_is_a_word_of_ngrams() -> None:
    for size in (2, 3):
        output = [5, 6, 9, 5, 6]
        with_start = [(i - 1, token) for i, token in repeats([9, *output], 1, size)]
        assert sorted(repeats(output, 0, size, 9)) == sorted(with_start)
    assert repeats([], 0, 2, 9) == repeats([7], 0, 1, 9)[1:] == []


@given(st.lists(st.integers(0, 2), max_size=12), st.data())
def test_repeats_against_looking_at_every_ngram(output: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(output)))
    size = data.draw(st.integers(1, 4))
    expected = set()
    for index in range(first, len(output) + 1):
        for token in range(3):
            ngram = [*output[:index], token][-size:]
            earlier = [output[i : i + size] for i in range(index - size + 1)]
            if len(ngram) == size and ngram in earlier:
                expected.add((index, token))
    found = repeats(output, first, size)
    assert set(found) == expected
    assert len(found) == len(expected)


@given(
    st.lists(st.lists(st.integers(3, 5), min_size=9, max_size=9), min_size=1, max_size=3),
    st.data(),
)
def test_repeats_on_the_device_are_those_of_the_host(
    outputs: list[list[int]], data: st.DataObject
) -> None:
    size, width = data.draw(st.integers(1, 4)), 3
    firsts = [data.draw(st.integers(0, 6)) for _ in outputs]
    written = torch.tensor([[EOS, *output] for output in outputs])  # what stands behind is not read
    at = torch.tensor([[first + slot for slot in range(width)] for first in firsts])
    found = repeats_on_device(written, at, size, PAD)
    for row, (output, first) in enumerate(zip(outputs, firsts, strict=True)):
        known = output[: first + width - 1]
        expected = repeats(known, first, size, EOS)
        for slot in range(width):
            here = {token for index, token in expected if index == first + slot}
            assert set(found[row, slot].tolist()) - {PAD} == here
