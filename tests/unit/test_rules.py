"""Rules: generation options at every position of a window against a plain reading of what stock does at one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.search.rules import Rules, repeats_on_device
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Draft

PAD, EOS, UNK, VOCABULARY = 1, 2, 3, 9
RULES = Rules(PAD, UNK, EOS)
FAR = 99


def make_row(output: Sequence[int] = (), end: int = FAR, floor: int = 0, **options: object) -> Row:
    return Row(0, [EOS, *output], end=end, floor=floor, **options)  # type: ignore[arg-type]


def choose(
    rules: Rules, rows: list[Row], drafts: list[list[int]], logits: torch.Tensor
) -> list[int]:
    state = DecodeState(rows, EOS, torch.device("cpu"))
    before = logits.clone()
    ruled = rules.applied(logits, state.window(Draft(drafts)), state)
    choices: list[int] = ruled.argmax(-1).tolist()
    assert torch.equal(logits, before)
    return choices


def favouring(*tokens: int) -> torch.Tensor:
    """Logits (1, V) that like the given tokens, the first most."""
    logits = torch.zeros(1, VOCABULARY)
    for rank, token in enumerate(tokens):
        logits[0, token] = 10.0 - rank
    return logits


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


def test_padding_is_never_chosen() -> None:
    assert choose(RULES, [make_row()], [[]], favouring(PAD, 7)) == [7]


def test_unknown_words_are_penalised_and_score_less() -> None:
    logits = favouring(UNK, 7)
    assert choose(RULES, [make_row()], [[]], logits) == [UNK]
    shy = replace(RULES, unk_penalty=3.0)
    assert choose(shy, [make_row()], [[]], logits) == [7]
    tokens = torch.tensor([UNK])
    assert torch.allclose(shy.scores(logits, tokens), RULES.scores(logits, tokens) - 3.0)
    tokens = torch.tensor([7])
    assert torch.equal(shy.scores(logits, tokens), RULES.scores(logits, tokens))
    eager = replace(RULES, unk_penalty=-20.0)
    assert choose(eager, [make_row()], [[]], favouring(7)) == [UNK]


def test_end_is_banned_before_the_minimum_length_and_forced_at_the_maximum() -> None:
    logits = favouring(EOS, 7).expand(4, -1).clone()
    assert choose(RULES, [make_row([5], floor=3)], [[5, 5, 5]], logits) == [7, 7, EOS, EOS]
    logits = favouring(7).expand(4, -1).clone()
    assert choose(RULES, [make_row([5], end=3)], [[5, 5, 5]], logits) == [7, 7, EOS, EOS]


def test_prefix_is_forced_padding_frees_and_the_minimum_length_waits() -> None:
    row = make_row(floor=5, prefix=[5, PAD, 6])
    logits = favouring(EOS, 7).expand(5, -1).clone()
    assert choose(RULES, [row], [[8, 8, 8, 8]], logits) == [5, EOS, 6, 7, 7]


def test_prefix_stops_at_the_maximum_length() -> None:
    logits = favouring(7).expand(2, -1).clone()
    assert choose(RULES, [make_row([5], end=2, prefix=[5, 6, 8])], [[6]], logits) == [6, EOS]


def test_strict_floor_holds_within_the_prefix_too() -> None:
    logits = favouring(EOS, 7).expand(3, -1).clone()
    row = make_row(strict_floor=2, prefix=[PAD, PAD, PAD])
    assert choose(RULES, [row], [[8, 8]], logits) == [7, 7, EOS]


def test_rows_have_rules_of_their_own() -> None:
    rows = [make_row([5], end=2), make_row(floor=1), make_row(prefix=[6])]
    logits = favouring(EOS, 7).expand(4, -1).clone()
    assert choose(RULES, rows, [[8], [], []], logits) == [EOS, EOS, 7, 6]


def test_repeated_ngrams_are_banned_in_the_draft_too() -> None:
    rules = replace(RULES, no_repeat_ngram_size=2)
    logits = favouring(6, 7).expand(3, -1).clone()
    # Output 5 6 8, draft 5 6: after "5 6 8 5" 6 would repeat "5 6".
    assert choose(rules, [make_row([5, 6, 8])], [[5, 6]], logits) == [6, 7, 6]


def test_forced_ends_are_free_when_asked() -> None:
    rows = [make_row([5], end=2), make_row([5], end=9)]
    state = DecodeState(rows, EOS, torch.device("cpu"))
    scores, emitted = torch.tensor([-1.0, -2.0, -3.0]), [[7, EOS], [EOS]]
    assert RULES.free_forced_ends(scores.clone(), emitted, state).tolist() == [-1.0, -2.0, -3.0]
    free = replace(RULES, free_end=True)
    assert free.free_forced_ends(scores.clone(), emitted, state).tolist() == [-1.0, 0.0, -3.0]


def test_scores_are_log_probabilities() -> None:
    logits = torch.arange(float(VOCABULARY)).repeat(2, 1)
    tokens = torch.tensor([4, UNK])
    expected = torch.log_softmax(logits, -1)[[0, 1], tokens]
    assert torch.allclose(RULES.scores(logits, tokens), expected)


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


def one_step(rules: Rules, row: Row, output: Sequence[int], logits: torch.Tensor) -> int:
    """The choice after ``output`` as ``SequenceGenerator._generate`` makes it in one step (prefix as wide as given)."""
    step, scores = len(output), logits.log_softmax(-1)
    scores[PAD] = -torch.inf
    scores[UNK] -= rules.unk_penalty
    if step >= row.end:
        return EOS
    if step < len(row.prefix):
        if row.prefix[step] != PAD:
            return row.prefix[step]
    elif step < row.floor:
        scores[EOS] = -torch.inf
    return int(scores.argmax())


@given(st.data())
def test_every_position_equals_one_stock_step(data: st.DataObject) -> None:
    token = st.integers(4, VOCABULARY - 1)
    rules = replace(RULES, unk_penalty=data.draw(st.sampled_from([0.0, 2.0, -2.0])))
    rows, drafts = [], []
    width = data.draw(st.integers(0, 4))
    for _ in range(data.draw(st.integers(1, 3))):
        end = data.draw(st.integers(1, 6))
        prefix = data.draw(st.lists(st.sampled_from([PAD, 5, 6]), min_size=width, max_size=width))
        output = data.draw(st.lists(token, max_size=end))
        rows.append(make_row(output, end=end, floor=data.draw(st.integers(0, end)), prefix=prefix))
        drafts.append(data.draw(st.lists(token, max_size=end - len(output))))
    slots = sum(len(draft) + 1 for draft in drafts)
    torch.manual_seed(data.draw(st.integers(0, 99)))
    logits = torch.randn(slots, VOCABULARY) * 2
    found = iter(choose(rules, rows, drafts, logits))
    vectors = iter(logits)
    for row, draft in zip(rows, drafts, strict=True):
        for offset in range(len(draft) + 1):
            output = [*row.tokens[1:], *draft[:offset]]
            assert next(found) == one_step(rules, row, output, next(vectors).clone())
