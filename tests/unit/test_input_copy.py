"""Drafting from the source: the plain rule that the library is compared with, and what the drafter makes of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary, data_utils
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.budget.copy_length import RESTING_BATCHES
from fairseq_aggdec.drafters.copy.copy_text import NEVER_DRAFTED
from fairseq_aggdec.drafters.copy.input_copy import (
    InputCopyDrafter,
    symbol_map,
)
from fairseq_aggdec.engine.precision import EXACT
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import NO_COPIES
from tests.reference.copying import CopyText

PAD, EOS, UNK = 1, 2, 3
WORDS = st.integers(4, 7)


def occurrences(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """Index of the last token of every occurrence."""
    size = len(part)
    return [i for i in range(size - 1, len(text)) if list(text[i - size + 1 : i + 1]) == list(part)]


def paper_draft(source: Sequence[int], output: Sequence[int]) -> list[int]:
    """Section 3.1 as it is written: if some suffix of the output is a unique substring of the source, what follows it.

    Both begin with the start symbol.
    """
    text = [EOS, *source]
    for start in range(len(output)):
        found = occurrences(text, output[start:])
        if len(found) == 1:
            return text[found[0] + 1 :]
    return []


def longest_draft(source: Sequence[int], output: Sequence[int]) -> list[int]:
    """``--variant iad-match=longest``: what follows the first occurrence of the longest suffix that occurs."""
    text = [EOS, *source]
    for start in range(len(output)):
        if found := occurrences(text, output[start:]):
            return text[found[0] + 1 :]
    return []


@given(st.lists(WORDS, max_size=10), st.lists(st.lists(WORDS, min_size=1, max_size=4), max_size=6))
def test_unique_is_the_rule_of_the_paper(source: list[int], rounds: list[list[int]]) -> None:
    text = CopyText(source, EOS, "unique")
    output = [EOS]
    assert text.copy(99) == source
    for gained in rounds:
        output += gained
        text.follow(output, len(gained))
        assert text.copy(99) == paper_draft(source, output)


@given(st.lists(WORDS, max_size=10), st.lists(st.lists(WORDS, min_size=1, max_size=4), max_size=6))
def test_longest_takes_the_first_occurrence(source: list[int], rounds: list[list[int]]) -> None:
    text = CopyText(source, EOS, "longest")
    output = [EOS]
    for gained in rounds:
        output += gained
        text.follow(output, len(gained))
        assert text.copy(99) == longest_draft(source, output)


@given(st.lists(WORDS, max_size=12), st.data())
def test_recent_takes_the_next_occurrence_after_the_last_copied_token(
    source: list[int], data: st.DataObject
) -> None:
    """Rounds as the loop makes them: a part of the draft is accepted, then comes another token."""
    copier = CopyText(source, EOS, "recent")
    text, output, copied, draft = [EOS, *source], [EOS], 0, list(source)
    lost = False
    for _ in range(data.draw(st.integers(0, 6))):
        accepted = draft[: data.draw(st.integers(0, len(draft)))]
        gained = [*accepted, data.draw(WORDS)]
        output += gained
        if not lost:
            copied += next(
                (i for i, token in enumerate(gained) if draft[i : i + 1] != [token]), len(gained)
            )
        if lost or len(accepted) == len(draft) or gained != draft[: len(gained)]:
            ends = (occurrences(text, output[start:]) for start in range(len(output)))
            found: list[int] = next((found for found in ends if found), [])
            lost = not found
            if found:
                copied = next((end for end in found if end > copied), found[0])
        draft = [] if lost else text[copied + 1 :]
        copier.follow(output, len(gained))
        assert copier.copy(99) == draft


def test_aligned_takes_a_rejected_token_as_replaced() -> None:
    a, b, c, d, e, new, newer = range(10, 17)
    text = CopyText([a, b, c, d, e], EOS, "aligned")
    text.follow([EOS, a, new], 2)  # instead of b
    assert text.copy(99) == [c, d, e]
    text.follow([EOS, a, new, newer], 1)  # b became two tokens
    assert text.copy(99) == [c, d, e]
    text.follow([EOS, a, new, newer, c, new], 2)  # instead of d
    assert text.copy(99) == [e]
    text.follow([EOS, a, new, newer, c, new, e], 1)
    assert text.copy(99) == []
    text.follow([EOS, a, new, newer, c, new, e, new], 1)
    assert text.copy(99) == []


# The drafter


def make_dictionary(words: str) -> Dictionary:
    dictionary = Dictionary()
    for word in words.split():
        dictionary.add_symbol(word)
    return dictionary


LETTERS = make_dictionary("a b c d e f")
A, B, C, D = (LETTERS.index(letter) for letter in "abcd")
OTHER = make_dictionary("z c a x")
NO = NEVER_DRAFTED


@pytest.mark.parametrize("left_pad", [True, False])
@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ([A, B, C], LETTERS, [A, B, C]),
        ([], LETTERS, []),
        ([A, UNK, B], LETTERS, [A, UNK, B]),
        *(([A, special, B], LETTERS, [A, NO, B]) for special in (EOS, PAD, LETTERS.bos())),
        ([C, A, B, A], OTHER, [OTHER.index("c"), OTHER.index("a"), NO, OTHER.index("a")]),
    ],
)
def test_texts_are_the_sources_in_words_of_the_target(
    source: list[int], target: Dictionary, text: list[int], left_pad: bool
) -> None:
    drafter = InputCopyDrafter(LETTERS, target, "unique")
    rows = [torch.tensor([*row, EOS]) for row in (source, [D] * 7)]
    tokens = data_utils.collate_tokens(rows, PAD, EOS, left_pad=left_pad)
    state = DecodeState([Row(i, [EOS], end=50, floor=1) for i in (0, 1)], EOS, tokens.device)
    unused: Any = SimpleNamespace(compiled=False, precision=EXACT)
    drafter.start({"net_input": {"src_tokens": tokens}}, unused, state)
    assert drafter.copies().texts[0] == [EOS, *text]


def test_symbol_map_goes_by_symbol() -> None:
    target = make_dictionary("b q a")
    mapped = symbol_map(LETTERS, target)
    assert len(mapped) == len(LETTERS)
    for index in range(len(LETTERS)):
        symbol = LETTERS[index]
        if index in (LETTERS.bos(), PAD, EOS) or symbol not in target.indices:
            assert mapped[index] == NEVER_DRAFTED
        else:
            assert target[int(mapped[index])] == symbol
    assert mapped[UNK] == target.unk()


def test_dictionaries_may_number_their_special_symbols_differently() -> None:
    source = Dictionary(extra_special_symbols=["<mask>"])
    target = Dictionary(bos="<start>", pad="<filler>", eos="<end>", unk="<unknown>")
    for dictionary in (source, target):
        for letter in ("a", "b"):
            dictionary.add_symbol(letter)
    drafter = InputCopyDrafter(source, target, "unique")
    state = DecodeState([Row(0, [EOS], end=50, floor=1)], EOS, torch.device("cpu"))
    unused: Any = SimpleNamespace(compiled=False, precision=EXACT)
    row = [[PAD, source.index("a"), source.index("b"), EOS]]
    drafter.start({"net_input": {"src_tokens": torch.tensor(row)}}, unused, state)
    assert drafter.copies().texts == [[target.eos(), target.index("a"), target.index("b")]]


def test_where_nothing_is_copied_the_text_is_not_even_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = InputCopyDrafter(LETTERS, LETTERS, "unique")
    drafter.draft_length.total.add(0.0, 1e6)
    sample = {"net_input": {"src_tokens": torch.tensor([[A, B, C, EOS]])}}
    unused: Any = SimpleNamespace(compiled=False, precision=EXACT)
    state = DecodeState([Row(0, [EOS], end=50, floor=1)], EOS, torch.device("cpu"))
    with monkeypatch.context() as patched:
        patched.setattr(drafter, "copied", None)
        drafter.start(sample, unused, state)
        assert drafter.resting and drafter.copies() is NO_COPIES
    for _ in range(RESTING_BATCHES):
        drafter.start(sample, unused, state)
    assert drafter.copies().texts == [[EOS, A, B, C]]
