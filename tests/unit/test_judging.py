"""Two judges, one table of cases: where two can decide they say the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.search.acceptance import Acceptance, AtLeast, TopBeta, exact
from fairseq_aggdec.search.judge import compiled, tensors
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.window import Window

PAD, EOS, UNK, VOCABULARY = 1, 2, 3, 21
RULES = Rules(PAD, UNK, EOS)
CPU = torch.device("cpu")


def random_rows(chance: random.Random, count: int) -> list[Row]:
    rows = []
    for index in range(count):
        output = [chance.randrange(4, 8) for _ in range(chance.randrange(5))]
        prefix = [chance.choice([PAD, 5, 6]) for _ in range(chance.randrange(7))]
        end = len(output) + chance.randrange(1, 6)
        floor, strict_floor = chance.randrange(8), chance.choice([0, 0, 6])
        rows.append(Row(index, [EOS, *output], end, floor, strict_floor, prefix))
    return rows


def random_draft(chance: random.Random, count: int, branches: bool) -> Draft:
    tokens = [
        [chance.choice([EOS, UNK, 4, 5, 6, 7]) for _ in range(chance.randrange(7))]
        for _ in range(count)
    ]
    if not branches:
        return Draft(tokens)
    return Draft(tokens, [[chance.randrange(n + 1) for n in range(len(row))] for row in tokens])


def agreeing(chance: random.Random, draft: Draft, window: Window) -> torch.Tensor:
    """Logits by which drafted tokens often stand."""
    logits = torch.randn(len(window.tokens), VOCABULARY)
    first = 0
    for width, row, parents in zip(window.widths, draft.rows(), draft.all_parents(), strict=True):
        for token, parent in zip(row, parents, strict=True):
            if chance.random() < 0.6:
                logits[first + parent, token] += 6.0
        first += width
    return logits


def verdicts(
    logits: torch.Tensor, window: Window, state: DecodeState, rules: Rules, accept: Acceptance
) -> dict[str, Verdict]:
    """What each judge says that can decide; the logits stay as they are."""
    able = {"tensors": tensors}
    if compiled.judges(logits, window, accept):
        able["compiled"] = compiled
    before, found = logits.clone(), {}
    for name, judge in able.items():
        found[name] = judge.judge(logits, window, state, rules, accept)
        assert torch.equal(logits.nan_to_num(99.0), before.nan_to_num(99.0)), name
    return found


def assert_alike(found: dict[str, Verdict]) -> None:
    (first, expected), *others = found.items()
    for other, verdict in others:
        for name in ("drafted", "accepted", "emitted", "paths"):
            assert getattr(verdict, name) == getattr(expected, name), (first, other, name)
        assert verdict.scores is not None
        torch.testing.assert_close(verdict.scores, expected.scores, equal_nan=True)


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 4),
    branches=st.booleans(),
    unk_penalty=st.sampled_from([0.0, 2.5, float("inf")]),
    size=st.sampled_from([0, 0, 1, 2]),
    accept=st.sampled_from([exact, TopBeta(1), TopBeta(3, 2.0), TopBeta(2), TopBeta(30)]),
)
def test_all_judges_say_the_same(
    seed: int, rows: int, branches: bool, unk_penalty: float, size: int, accept: Acceptance
) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    rules = replace(RULES, unk_penalty=unk_penalty, no_repeat_ngram_size=size)
    state = DecodeState(random_rows(chance, rows), EOS, CPU)
    draft = random_draft(chance, rows, branches)
    window = state.window(draft)
    logits = agreeing(chance, draft, window)
    if chance.random() < 0.2:
        logits[chance.randrange(len(logits)), chance.randrange(VOCABULARY)] = torch.nan
    found = verdicts(logits, window, state, rules, accept)
    assert "compiled" in found or kernels() is None
    assert_alike(found)


@pytest.mark.parametrize("accept", [exact, TopBeta(1, 0.5), TopBeta(2, 0.5)])
def test_of_equal_siblings_the_longer_path_stands(accept: Acceptance) -> None:
    state = DecodeState([Row(0, [EOS], end=9, floor=1)], EOS, CPU)
    draft = Draft([[4, 4, 5]], [[0, 0, 2]])
    logits = torch.zeros(4, VOCABULARY)
    logits[0, 4] = logits[1, 6] = logits[2, 5] = logits[3, 7] = 9.0
    found = verdicts(logits, state.window(draft), state, RULES, accept)
    assert found["tensors"].emitted == [[4, 5, 7]]
    assert_alike(found)


def test_who_can_judge() -> None:
    logits, relaxed = torch.zeros(3, VOCABULARY), AtLeast(2, exact)
    state = DecodeState([Row(0, [EOS], end=9, floor=1)], EOS, CPU)
    drafted, alone = (state.window(Draft([draft])) for draft in ([4, 5], []))
    if kernels() is None:
        assert not compiled.judges(logits, drafted, exact)
        return
    assert compiled.judges(logits, drafted, exact)
    assert compiled.judges(logits, drafted, TopBeta(3))
    assert not compiled.judges(logits, drafted, relaxed)
    assert compiled.judges(logits[:1], alone, relaxed)  # nothing to accept
    assert not compiled.judges(logits.double(), drafted, exact)
    assert not compiled.judges(logits.t(), drafted, exact)
