"""One step of Algorithm 1 against all combinations; its two searches; repetitions against a plain reading."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.data.interleaving import Geometry, hidden_slots
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.search.interleaved.generator import count_sentence, distinct
from fairseq_aggdec.search.interleaved.library import results_of, search_of
from fairseq_aggdec.search.interleaved.search import InterleavedSearch, SentenceResult
from fairseq_aggdec.search.interleaved.step import best_steps, best_words
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.windows.window import DecoderOutput
from tests.reference.batches import CPU, EOS, PAD, START, UNK, Cache, random_limits, run

VOCABULARY = 7
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


class Slots(Cache):
    """What each row of a batch has read of slots; each slot of a step says something else."""

    def __init__(self, chance: random.Random, types: int, geometry: Geometry, sentences: int):
        self.seed, self.types, self.geometry = chance.randrange(1 << 30), types, geometry
        self.spread, self.spoilt = chance.choice((0.5, 2.0, 6.0)), chance.random() < 0.03
        super().__init__(self, sentences)  # type: ignore[arg-type]
        self.rows: list[tuple[int, list[int]]] = [(row, []) for row in range(sentences)]

    def logits(self, sentences: Sequence[int], prefixes: Sequence[Sequence[int]]) -> Tensor:
        found = torch.empty(len(sentences), self.types)
        for at, (sentence, prefix) in enumerate(zip(sentences, prefixes, strict=True)):
            seed = hash((self.seed, at % self.geometry.step, sentence, *prefix))
            own = torch.Generator().manual_seed(seed & (1 << 60) - 1)
            found[at] = torch.randn(self.types, generator=own) * self.spread
            if self.spoilt and not seed % 13:
                found[at, 3] = torch.nan
        return found

    def read(self, window: Any) -> DecoderOutput:
        """Of the board, where a row is a hypothesis."""
        step, words = self.geometry.step, window.host_tokens()
        sentences, prefixes = [], []
        for number, (sentence, known) in enumerate(self.rows):
            known += words[number * step : (number + 1) * step]
            hidden = hidden_slots(len(known) - step, len(known), self.geometry, CPU)
            sentences += [sentence] * step
            prefixes += [[known[key] for key in (~row).nonzero().flatten()] for row in hidden]
        return DecoderOutput(self.logits(sentences, prefixes), [])

    def keep(self, kept: Any) -> None:
        self.rows = [(self.rows[n][0], list(self.rows[n][1])) for n in kept.gathered]


def interleaved_case(seed: int) -> None:
    """The board finds what the library does, with the same scores; what differs is a tie."""
    chance = random.Random(seed)
    rows, types = chance.randint(1, 4), chance.choice((5, 7, 40))
    directions, words = chance.choice(((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)))
    geometry = Geometry(
        *(directions, words),
        vanilla_mask=directions * words > 1 and chance.random() < 0.2,
        independent=directions > 1 and chance.random() < 0.2,
    )
    options: Any = SimpleNamespace(
        eos=EOS,
        pad=PAD,
        unk=UNK,
        beam_size=chance.randint(1, 5),
        unk_penalty=chance.choice((0.0, 0.0, 1.5, -1.0, math.inf)),
        no_repeat_ngram_size=0,
    )
    limits = random_limits(chance, rows)
    options.match_source_len = limits.exact
    ends = chance.random() < 0.3, chance.random() < 0.3
    model = Slots(chance, types, geometry, rows)
    rules = Rules(PAD, UNK, EOS, options.unk_penalty, free_end=limits.exact)
    board = InterleavedSearch(rules, options.beam_size, CPU, geometry, limits, START, *ends)
    expected = board.decode(model, Counters())  # type: ignore[arg-type]
    library = search_of(options, geometry, limits, START, *ends)
    run(library, model)
    broken = any(sentence.broken for sentence in expected)
    try:
        _, found = results_of(library, rows)
    except NonFiniteError:
        broken = True
    if model.spoilt:  # the board also reads rows that hold no hypothesis, and not all of the others
        return
    assert not broken
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.steps == theirs.steps
        totals, others = ([sum(s) for _, s in own.hypotheses] for own in (ours, theirs))
        assert totals == pytest.approx(others, abs=1e-4)
        words_of = [[tokens for tokens, _ in own.hypotheses] for own in (ours, theirs)]
        near = any(abs(a - b) < 1e-4 for a, b in itertools.combinations(totals, 2))
        assert words_of[0] == words_of[1] or near


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
def test_a_thousand_random_cases() -> None:
    for seed in range(1000):
        try:
            interleaved_case(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


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
