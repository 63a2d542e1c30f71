"""One call of the compiled library against rules, acceptance and scores in PyTorch's operators."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.search.acceptance import Acceptance, TopBeta, at_least, exact
from fairseq_aggdec.search.judging import judge_compiled, judges
from fairseq_aggdec.search.loop import commit, judge
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState, Row
from fairseq_aggdec.windows.draft import Draft, TreeDraft, Verdict
from fairseq_aggdec.windows.window import Window

PAD, EOS, UNK, VOCABULARY = 1, 2, 3, 21
RULES = Rules(PAD, UNK, EOS)
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(kernels() is None, reason="without the compiled kernels")


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
    return TreeDraft(tokens, [[chance.randrange(n + 1) for n in range(len(row))] for row in tokens])


def agreeing(chance: random.Random, draft: Draft, window: Window) -> torch.Tensor:
    """Logits by which drafted tokens often stand."""
    logits = torch.randn(len(window.tokens), VOCABULARY)
    first = 0
    for width, row, parents in zip(window.widths, draft.rows(), draft.ways(), strict=True):
        for token, parent in zip(row, parents, strict=True):
            if chance.random() < 0.6:
                logits[first + parent, token] += 6.0
        first += width
    return logits


def judged_plainly(
    accept: Acceptance,
    rules: Rules,
    logits: torch.Tensor,
    draft: Draft,
    window: Window,
    rows: list[Row],
) -> tuple[Verdict, torch.Tensor]:
    state = DecodeState(rows, EOS, CPU)
    with rules.applied(logits, window, state) as ruled:
        found = judge(accept, ruled, draft, window, rules.eos)
    commit(found, rules, logits, state)
    return found, state.scores[0]


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 4),
    branches=st.booleans(),
    unk_penalty=st.sampled_from([0.0, 2.5, float("inf")]),
    size=st.sampled_from([0, 0, 1, 2]),
    accept=st.sampled_from([exact, TopBeta(1), TopBeta(3, 2.0), TopBeta(2), TopBeta(30)]),
)
def test_the_library_judges_as_the_operators_do(
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
    before = logits.clone()
    found = judge_compiled(kernels(), accept, rules, logits, draft, window, state)
    assert torch.equal(logits.nan_to_num(99.0), before.nan_to_num(99.0))
    expected, scores = judged_plainly(accept, rules, logits, draft, window, state.rows)
    for name in ("drafted", "accepted", "emitted", "paths"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.scores is not None
    torch.testing.assert_close(found.scores, scores, equal_nan=True)


@pytest.mark.parametrize("beta", [1, 2])
def test_of_equal_siblings_the_longer_path_stands(beta: int) -> None:
    """As in the operators; without relaxed acceptance the first one does."""
    state = DecodeState([fresh_row()], EOS, CPU)
    draft = TreeDraft([[4, 4, 5]], [[0, 0, 2]])
    window = state.window(draft)
    logits = torch.zeros(4, VOCABULARY)
    logits[0, 4] = logits[1, 6] = logits[2, 5] = logits[3, 7] = 9.0
    for accept, emitted in ((TopBeta(beta, 0.5), [4, 5, 7]), (exact, [4, 6])):
        found = judge_compiled(kernels(), accept, RULES, logits, draft, window, state)
        expected, _ = judged_plainly(accept, RULES, logits.clone(), draft, window, [fresh_row()])
        assert found.emitted == expected.emitted == [emitted]
        assert found.paths == expected.paths


def fresh_row() -> Row:
    return Row(0, [EOS], end=9, floor=1)


def test_what_is_judged_by_the_library() -> None:
    logits, relaxed = torch.zeros(3, VOCABULARY), at_least(2, exact)
    drafted = Draft([[4, 5]]).window([EOS], [0], CPU)
    assert judges(exact, logits, drafted) is not None
    assert judges(TopBeta(3), logits, drafted) is not None
    assert judges(relaxed, logits, drafted) is None
    alone = Draft([[]]).window([EOS], [0], CPU)
    assert judges(relaxed, logits[:1], alone) is not None  # nothing to accept
    assert judges(exact, logits.double(), drafted) is None
    assert judges(exact, logits.t(), drafted) is None
