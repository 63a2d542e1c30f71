"""One step of Algorithm 1 against all combinations; repetitions against a plain reading."""

from __future__ import annotations

import itertools
import math
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.interleaved.generator import count_sentence, distinct
from fairseq_aggdec.search.interleaved.search import SentenceResult
from fairseq_aggdec.search.interleaved.step import best_steps, best_words
from fairseq_aggdec.search.rules import Rules

PAD, UNK, EOS, VOCABULARY = 1, 3, 2, 7
RULES = Rules(PAD, UNK, EOS)


def all_steps(
    logits: torch.Tensor, beam: int, all_agree: bool
) -> list[tuple[float, list[int], list[float]]]:
    """Every combination of the best words of each slot (z, V), cut behind ``</s>``, best first."""
    scores = logits.log_softmax(-1)
    scores[:, PAD] = -math.inf
    found = {}
    for words in itertools.product(*scores.topk(beam).indices.tolist()):
        length = words.index(EOS) + 1 if EOS in words else len(words)
        parts = [float(scores[i, word]) for i, word in enumerate(words[:length])]
        if EOS in words and all_agree:
            parts[-1] += float(scores[length:, EOS].sum())
        found[words[:length]] = (sum(parts), list(words[:length]), parts)
    return sorted(found.values(), key=lambda item: -item[0])[:beam]


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 3),
    step=st.integers(1, 4),
    beam=st.integers(1, 5),
    end=st.sampled_from([-2.0, 0.0, 3.0]),
    all_agree=st.booleans(),
    many=st.sampled_from([0, 8, 2**10]),
)
def test_best_steps_are_the_best_of_all_combinations(
    seed: int, rows: int, step: int, beam: int, end: float, all_agree: bool, many: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, step, VOCABULARY, generator=generator) * 2
    logits[..., EOS] += end  # sometimes rare, sometimes in every slot
    limits = Limits([100] * rows, 0, exact=False, capacity=0)
    *best, ends = best_words(logits, 0, list(range(rows)), beam, RULES, limits)
    with mock.patch("fairseq_aggdec.search.interleaved.step.MANY_SUMS", many):
        steps = best_steps(*best, ends if all_agree else None, EOS, PAD)
    for row in range(rows):
        expected = all_steps(logits[row], beam, all_agree)
        found = steps.totals[row].isfinite().sum()
        assert found == len(expected)
        for rank, (total, words, parts) in enumerate(expected):
            blank = step - len(words)
            assert steps.words[row, rank].tolist() == words + [PAD] * blank
            assert steps.scores[row, rank].tolist() == pytest.approx(
                parts + [0.0] * blank, abs=1e-5
            )
            assert float(steps.totals[row, rank]) == pytest.approx(total, abs=1e-5)
            assert steps.ends[row, rank] == (len(words) - 1 if words[-1] == EOS else step)


def test_length_limits_hold_per_sentence() -> None:
    """At slots 4 to 7 no sentence may end before 6; with limits of their own the second must end at 5."""
    logits = torch.zeros(2, 4, VOCABULARY)
    logits[..., EOS] = 5.0
    longest = Limits([100, 100], floor=6, exact=False, capacity=0)
    _, words, _ = best_words(logits, 4, [0, 1], 2, RULES, longest)
    assert (words[:, :2] != EOS).all()
    assert (words[:, 2:, 0] == EOS).all()
    own = Limits([100, 5], floor=0, exact=False, capacity=0)
    log_probs, words, _ = best_words(logits, 4, [0, 1], 2, RULES, own)
    assert (words[:, :, 0] == EOS).all()
    assert log_probs[1, 0, 1].isfinite()
    assert (log_probs[1, 1:, 1] == -math.inf).all()
    assert (words[log_probs.isfinite()] != PAD).all()


def test_an_end_that_has_to_match_the_source_is_free_and_the_only_one() -> None:
    logits = torch.randn(1, 2, VOCABULARY, generator=torch.Generator().manual_seed(1))
    own = logits.log_softmax(-1)[0, 1, EOS]
    for exact, expected in ((False, own), (True, torch.tensor(0.0))):
        rules, limits = Rules(PAD, UNK, EOS, free_end=exact), Limits([1], 0, exact, capacity=0)
        log_probs, words, _ = best_words(logits, 0, [0], 2, rules, limits)
        assert words[0, 1, 0] == EOS
        assert not exact or EOS not in words[0, 0]
        torch.testing.assert_close(log_probs[0, 1, 0], expected)


@given(words=st.lists(st.integers(0, 2), max_size=12), longest=st.integers(0, 3))
def test_distinct_leaves_no_repeat_of_the_longest_kind(words: list[int], longest: int) -> None:
    kept = [words[i] for i in distinct(words, longest)]
    assert distinct(words, longest) == sorted(set(distinct(words, longest)))
    if longest:
        pairs = range(len(kept) - 2 * longest + 1)
        assert all(kept[i : i + longest] != kept[i + longest : i + 2 * longest] for i in pairs)
    else:
        assert kept == words


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [
        ("aab", 0, "aab"),
        ("aaab", 1, "ab"),
        ("abab", 1, "abab"),
        ("abab", 2, "ab"),
        ("aabaab", 2, "ab"),
        ("abcabcabcd", 3, "abcd"),
        ("abcabc", 2, "abcabc"),
        ("", 3, ""),
    ],
)
def test_distinct_examples(text: str, longest: int, expected: str) -> None:
    words = [ord(letter) for letter in text]
    assert "".join(text[i] for i in distinct(words, longest)) == expected


def test_counting_a_sentence() -> None:
    counters = Counters()
    count_sentence(counters, SentenceResult(steps=4), tokens=6, step=4)
    count_sentence(counters, SentenceResult(steps=2), tokens=8, step=4)
    assert counters.sentences == 2
    assert counters.iterations == 6
    assert counters.tokens == 14
    assert {length: rounds for length, rounds in counters.emitted.items() if rounds} == {
        4: 3,
        2: 1,
        0: 2,
    }
