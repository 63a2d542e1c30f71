"""Drafting from the source: CopyText against a plain reading of the rule, and what the drafter makes of a batch."""

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
from fairseq_aggdec.methods.options.settings import VARIANTS
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import NO_COPIES
from tests.reference.copying import CopyText, PlainCopies
from tests.support import lines_run

PAD, EOS, UNK = 1, 2, 3
WORDS = st.integers(4, 7)
MATCHES = VARIANTS["iad-match"].choices


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


def test_worked_example_of_an_edit() -> None:
    """Of "want go to school", "to" is inserted: it leads to "school", and "go" leads back."""
    i, want, go, to, school, stop = range(10, 16)
    text = CopyText([i, want, go, to, school, stop], EOS, "unique")
    assert text.copy(99) == [i, want, go, to, school, stop]
    text.follow([EOS, i, want, to], 3)  # "i want" stands, "to" is the correction
    assert text.copy(99) == [school, stop]
    text.follow([EOS, i, want, to, go], 1)
    assert text.copy(99) == [to, school, stop]


def test_a_repeated_word_waits_for_its_context() -> None:
    a, b, c, new = 10, 11, 12, 13
    output = [EOS, new, a]
    drafts = {}
    for match in MATCHES:
        text = CopyText([a, b, a, c], EOS, match)
        text.follow(output, 2)
        drafts[match] = text.copy(99)
    assert drafts == {match: [] if match == "unique" else [b, a, c] for match in MATCHES}


@pytest.mark.parametrize("match", MATCHES)
def test_copies_stop_at_the_limit_and_at_what_is_never_drafted(match: str) -> None:
    text = CopyText([5, 6, NEVER_DRAFTED, 7], EOS, match)
    assert text.copy(99) == [5, 6]
    assert text.copy(1) == [5]
    assert text.copy(0) == []
    text.follow([EOS, 5, 6, 7], 3)
    assert text.copy(99) == []


@given(st.lists(WORDS, max_size=10), st.lists(st.lists(WORDS, min_size=1, max_size=4), max_size=6))
def test_aligned_copies_where_recent_does(source: list[int], rounds: list[list[int]]) -> None:
    recent, aligned = (CopyText(source, EOS, match) for match in ("recent", "aligned"))
    output = [EOS]
    for gained in rounds:
        output += gained
        for text in (recent, aligned):
            text.follow(output, len(gained))
        if recent.cursor is not None:
            assert aligned.cursor is not None
            assert aligned.tokens[aligned.cursor] == output[-1]


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


def test_aligned_comes_back_when_words_were_left_out() -> None:
    a, b, c, d, e, new = range(10, 16)
    text = CopyText([a, b, c, d, e], EOS, "aligned")
    text.follow([EOS, new], 1)
    assert text.copy(99) == [b, c, d, e]
    text.follow([EOS, new, d], 1)
    assert text.copy(99) == [e]


# The drafter


def make_dictionary(words: str) -> Dictionary:
    dictionary = Dictionary()
    for word in words.split():
        dictionary.add_symbol(word)
    return dictionary


LETTERS = make_dictionary("a b c d e f")
A, B, C, D = (LETTERS.index(letter) for letter in "abcd")


def started(
    sources: Sequence[Sequence[int]],
    left_pad: bool = True,
    end: int = 50,
    target: Dictionary = LETTERS,
) -> tuple[PlainCopies, DecodeState]:
    """A drafter that has taken up a batch of sources (without their ``</s>``)."""
    drafter = InputCopyDrafter(LETTERS, target, "unique")
    tokens = [torch.tensor([*source, EOS]) for source in sources]
    source = data_utils.collate_tokens(tokens, PAD, EOS, left_pad=left_pad)
    state = DecodeState(
        [Row(i, [EOS], end=end, floor=1) for i in range(len(sources))], EOS, source.device
    )
    unused: Any = SimpleNamespace(compiled=False)
    drafter.start({"net_input": {"src_tokens": source}}, unused, state)
    return PlainCopies(drafter), state


def emit(drafter: PlainCopies, state: DecodeState, emitted: list[list[int]]) -> None:
    """What the loop does after a round in which nothing else than ``emitted`` was found out."""
    for row, tokens in zip(state.rows, emitted, strict=True):
        row.tokens.extend(tokens)
    drafted = [0] * len(emitted)
    seen: Any = SimpleNamespace(drafted=drafted, accepted=drafted, emitted=emitted)
    drafter.observe(seen, state)


@pytest.mark.parametrize("left_pad", [True, False])
def test_first_draft_is_the_source_without_end_and_padding(left_pad: bool) -> None:
    drafter, state = started([[A, B, C], [D], []], left_pad)
    assert [list(row) for row in drafter.draft(state).tokens] == [[A, B, C], [D], []]


def test_room_limits_the_draft() -> None:
    drafter, state = started([[A, B, C, D]], end=2)
    assert [list(row) for row in drafter.draft(state).tokens] == [[A, B]]
    emit(drafter, state, [[A, B]])
    assert [list(row) for row in drafter.draft(state).tokens] == [[]]


def test_special_symbols_of_the_source_are_never_drafted() -> None:
    for special in (EOS, PAD, LETTERS.bos()):
        drafter, state = started([[A, special, B]])
        assert [list(row) for row in drafter.draft(state).tokens] == [[A]]


def test_unknown_words_are_drafted_as_unknown() -> None:
    drafter, state = started([[A, UNK, B]])
    assert [list(row) for row in drafter.draft(state).tokens] == [[A, UNK, B]]


def test_other_target_dictionary() -> None:
    target = make_dictionary("z c a x")
    drafter, state = started([[C, A, B, A]], target=target)
    assert [list(row) for row in drafter.draft(state).tokens] == [
        [target.index("c"), target.index("a")]
    ]


def test_rows_follow_their_own_text_and_move_with_keep_rows() -> None:
    drafter, state = started([[A, B, C], [D, C, B], [B, A, D]])
    emit(drafter, state, [[B], [C], [D, EOS]])
    assert [list(row) for row in drafter.draft(state).tokens][:2] == [[C], [B]]
    state.rows = state.rows[:2]
    drafter.keep_rows([1, 0])
    state.rows.reverse()
    assert [list(row) for row in drafter.draft(state).tokens] == [[B], [C]]


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
    unused: Any = SimpleNamespace(compiled=False)
    row = [[PAD, source.index("a"), source.index("b"), EOS]]
    drafter.start({"net_input": {"src_tokens": torch.tensor(row)}}, unused, state)
    assert drafter.copies().texts == [[target.eos(), target.index("a"), target.index("b")]]


def test_where_nothing_is_copied_the_text_is_not_even_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = InputCopyDrafter(LETTERS, LETTERS, "unique")
    drafter.draft_length.total.add(0.0, 1e6)
    sample = {"net_input": {"src_tokens": torch.tensor([[A, B, C, EOS]])}}
    unused: Any = SimpleNamespace(compiled=False)
    state = DecodeState([Row(0, [EOS], end=50, floor=1)], EOS, torch.device("cpu"))
    with monkeypatch.context() as patched:
        patched.setattr(drafter, "copied", None)
        drafter.start(sample, unused, state)
        assert drafter.resting and drafter.copies() is NO_COPIES
    for _ in range(RESTING_BATCHES):
        drafter.start(sample, unused, state)
    assert drafter.copies().texts == [[EOS, A, B, C]]


def test_a_row_that_drafted_nothing_for_a_while_knows_where_it_stands() -> None:
    drafter, state = started([[A, B, C, D, A]])
    for token in (A, B):
        emit(drafter, state, [[token]])
    assert [list(row) for row in drafter.draft(state).tokens] == [[C, D, A]]
    emit(drafter, state, [[D]])
    emit(drafter, state, [[A]])
    assert [list(row) for row in drafter.draft(state).tokens] == [[]]


def work_of_a_jump(length: int) -> int:
    """Lines run to find where an output stands whose last tokens are all over a text."""
    text = CopyText([10, 11, 12] * (length // 3) + [13, 14], EOS, "aligned")
    output = [EOS, 10, 11, 12, 10, 13]
    text.follow(output, 5)
    output += [10, 11]
    text.follow(output, 2)
    output += [13, 10, 11]
    return lines_run(lambda: text.follow(output, 3))


def test_no_more_work_where_a_text_repeats_itself() -> None:
    assert work_of_a_jump(3000) <= work_of_a_jump(60) + 30
