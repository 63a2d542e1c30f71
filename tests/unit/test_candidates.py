"""Candidates: counted tables and their lookup against dictionaries, the lattice of a batch, folders of tables."""

from __future__ import annotations

import math
from collections import Counter as Tally
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_aggdec.lattice import candidates, counting
from fairseq_aggdec.lattice.alignment.corpus import Sentences
from fairseq_aggdec.lattice.candidates import (
    CandidateModel,
    Smoothing,
    Special,
    Weights,
    gather_words,
    most_likely,
)
from fairseq_aggdec.lattice.counting import AlignedPairs, Counter
from fairseq_aggdec.lattice.lattice import Lattice
from fairseq_aggdec.lattice.length import LengthModel, LengthWindow

PAD, EOS, UNK = 1, 2, 3
TYPES = 12  # ids 4 to 11 are words
WEIGHTS = Weights(0.4, 0.6)
Pair = tuple[list[int], list[int], list[tuple[int, int]]]


@st.composite
def corpora(draw: st.DrawFn) -> list[Pair]:
    """A few aligned sentence pairs over a few words, some of them empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    pairs = []
    for _ in range(draw(st.integers(1, 12))):
        source, target = (rng.integers(4, TYPES, rng.integers(0, 6)).tolist() for _ in "st")
        grid = [(a, t) for a in range(len(source)) for t in range(len(target))]
        pairs.append((source, target, [link for link in grid if rng.random() < 0.4]))
    return pairs


def flat(pairs: list[Pair]) -> AlignedPairs:
    links = [link for _, _, found in pairs for link in found]
    sides = [
        Sentences(
            np.array([word for pair in pairs for word in pair[side]], np.int32),
            np.array([len(pair[side]) for pair in pairs], np.int64),
        )
        for side in (0, 1)
    ]
    counts = np.array([len(found) for _, _, found in pairs], np.int64)
    return AlignedPairs(*sides, np.array(links, np.int32).reshape(-1, 2), counts)


def make_model(
    pairs: list[Pair],
    top: int = 40,
    max_offset: int | None = None,
    weights: Weights = WEIGHTS,
) -> CandidateModel:
    counter = Counter(TYPES, max_offset)
    counter.add(flat(pairs))
    return CandidateModel(
        **counter.tables(top),
        max_offset=counter.reach,
        length=LengthModel(1.0, 0.0),
        weights=weights,
        special=Special(PAD, EOS, UNK, TYPES),
    )


@dataclass
class Plain:
    """The candidate model with dictionaries and loops."""

    pairs: list[Pair]
    top: int
    max_offset: int | None
    weights: Weights

    def __post_init__(self) -> None:
        self.translation: Tally = Tally()
        self.lexicon: Tally = Tally()
        self.position: Tally = Tally()
        self.offset: Tally = Tally()
        for source, target, links in self.pairs:
            for a, t in links:
                offset = self.clip(a - t)
                self.translation[(source[a], offset), target[t]] += 1
                self.lexicon[source[a], target[t]] += 1
                self.position[(len(source), t), a] += 1
                self.offset[None, offset] += 1

    def clip(self, offset: int) -> int:
        reach = self.max_offset
        return offset if reach is None else max(-reach, min(reach, offset))

    def chances(self, tally: Tally, key: object, top: int | None = None) -> dict[int, float]:
        found = {value: count for (one, value), count in tally.items() if one == key}
        kept = sorted(found, key=lambda value: (-found[value], value))[:top]
        return {value: found[value] / sum(found.values()) for value in kept}

    def prior(self, length: int, t: int, smoothing: Smoothing) -> list[float]:
        known = self.chances(self.position, (length, t))
        specific = [known.get(a, 0.0) for a in range(length)]
        if smoothing == "none":
            return specific if known else [1 / length] * length
        offsets = self.chances(self.offset, None)
        relative = [offsets.get(self.clip(a - t), 0.0) for a in range(length)]
        relative = relative if sum(relative) else [1.0] * length
        v = self.weights.position if known else 0.0
        return [
            v * one + (1 - v) * two / sum(relative)
            for one, two in zip(specific, relative, strict=True)
        ]

    def words(self, source: list[int], t: int, smoothing: Smoothing) -> dict[int, float]:
        """P(y | x, t) of every word that has a chance."""
        total: dict[int, float] = {}
        for a, prior in enumerate(self.prior(len(source), t, smoothing)):
            specific = self.chances(self.translation, (source[a], self.clip(a - t)), self.top)
            parts = [(1.0, specific)]
            if smoothing == "interpolated":
                w = self.weights.translation if specific else 0.0
                parts = [(w, specific), (1 - w, self.chances(self.lexicon, source[a], self.top))]
            for weight, chances in parts:
                for y, chance in chances.items():
                    total[y] = total.get(y, 0.0) + weight * prior * chance
        return {y: chance for y, chance in total.items() if chance}


@settings(max_examples=60)
@given(
    corpora(),
    st.sampled_from(["none", "interpolated"]),
    st.sampled_from([1, 2, 40]),
    st.sampled_from([None, 0, 1]),
    st.integers(0, 2**32),
)
def test_probabilities_are_those_of_dictionaries(
    pairs: list[Pair], smoothing: Smoothing, top: int, max_offset: int | None, seed: int
) -> None:
    weights = Weights(0.3, 0.8)
    plain = Plain(pairs, top, max_offset, weights)
    model = make_model(pairs, top, max_offset, weights)
    rng = np.random.default_rng(seed)
    sources = [rng.integers(4, TYPES, size).tolist() for size in (1, 5, 3)]
    batch = torch.tensor([source + [PAD] * (5 - len(source)) for source in sources])
    tokens, chances = model.words(batch, torch.tensor([1, 5, 3]), 6, TYPES, smoothing)
    assert tokens.shape == chances.shape == (3, 6, TYPES)
    assert (chances.diff(dim=2) <= 0).all()
    for row, source in enumerate(sources):
        for t in range(6):
            expected = plain.words(source, t, smoothing)
            found = dict(zip(tokens[row, t].tolist(), chances[row, t].tolist(), strict=True))
            assert found.pop(PAD, 0.0) == 0
            assert found.keys() == expected.keys()
            for y, chance in expected.items():
                assert found[y] == pytest.approx(chance, rel=1e-5)


@given(corpora(), st.integers(1, 4))
def test_counting_in_parts_is_counting_at_once(pairs: list[Pair], parts: int) -> None:
    counters = [Counter(TYPES), Counter(TYPES)]
    counters[0].add(flat(pairs))
    for start in range(parts):
        counters[1].add(flat(pairs[start::parts]))
        counters[1].translation.settle()
    whole, merged = counters[0].tables(), counters[1].tables()
    assert counters[0].links == counters[1].links
    for name, table in whole.items():
        for array in ("keys", "starts", "values", "probabilities"):
            assert torch.equal(getattr(table, array), getattr(merged[name], array))


def test_many_observations_are_counted_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_PENDING", 4)
    counts = counting.Counts()
    for start in range(5):
        counts.add(np.arange(start, start + 3))
        assert sum(map(len, counts._pending)) < 4
    counts.settle()
    assert dict(zip(counts.observations.tolist(), counts.counts.tolist(), strict=True)) == Tally(
        value for start in range(5) for value in range(start, start + 3)
    )


def test_of_equally_frequent_tokens_the_lowest_is_kept() -> None:
    model = make_model([([4], [y], [(0, 0)]) for y in (9, 7, 8, 9)], top=2)
    tokens, chances = model.words(torch.tensor([[4]]), torch.tensor([1]), 1, 3)
    assert tokens.tolist() == [[[9, 7, PAD]]]
    assert chances.tolist() == [[[0.5, 0.25, 0.0]]]


def test_parts_of_the_positions_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([4, 5, 6], [7, 8, 9], [(0, 0), (1, 1), (2, 2), (0, 1)])]
    model = make_model(pairs)
    args = torch.tensor([[4, 5, 6]]), torch.tensor([3]), 7, 4
    whole = model.words(*args, "interpolated")
    monkeypatch.setattr(candidates, "_SPREAD", 50)
    for one, two in zip(whole, model.words(*args, "interpolated"), strict=True):
        assert torch.equal(one, two)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=3, max_size=3),
        min_size=1,
    )
)
def test_equal_tokens_are_summed(rows: list[list[tuple[int, int]]]) -> None:
    tokens = torch.tensor([[[token for token, _ in row]] for row in rows], dtype=torch.int32)
    chances = torch.tensor([[[float(chance) for _, chance in row]] for row in rows])
    tokens, chances = (part.expand(-1, 2, -1) for part in (tokens, chances))
    found, sums = (part[:, 1] for part in most_likely(tokens, chances, 4, 6))
    for row, entries in enumerate(rows):
        total: Tally = Tally()
        for token, chance in entries:
            total[token] += chance
        best = sorted(((-count, token) for token, count in total.items() if count))
        assert [
            (-count, token)
            for count, token in zip(sums[row].tolist(), found[row].tolist(), strict=True)
            if count
        ] == best


def test_words_are_found_wherever_the_padding_stands() -> None:
    rows = torch.tensor(
        [[PAD, PAD, 4, 5, EOS], [6, EOS, PAD, PAD, PAD], [7, 8, 9, 4, 5], [PAD] * 5]
    )
    words, lengths = gather_words(rows, Special(PAD, EOS, UNK, TYPES))
    assert lengths.tolist() == [2, 1, 5, 0]
    assert words.tolist() == [[4, 5, 1, 1, 1], [6, 1, 1, 1, 1], [7, 8, 9, 4, 5], [1] * 5]


# -- the lattice of a batch

MONOTONE: list[Pair] = [
    ([4, 5, 6], [7, 8, 9], [(0, 0), (1, 1), (2, 2)]),
    ([4, 5], [10, 11], [(0, 0), (1, 1)]),
]


def shown(lattice: Lattice, row: int) -> list[list[int]]:
    """The candidates of each position of a row."""
    nodes = lattice.nodes[row].tolist()
    return [
        [token for token, there in zip(tokens, kept, strict=True) if there]
        for tokens, kept in zip(lattice.tokens[row].tolist(), nodes, strict=True)
    ]


def test_ends_and_padding_stand_where_a_length_of_the_window_allows() -> None:
    lengths = LengthWindow(torch.tensor([1, 3]), torch.tensor([2, 3]))
    lattice = make_model(MONOTONE).lattice(
        torch.tensor([[4, 5, EOS], [4, 5, 6]]), 3, lengths=lengths
    )
    assert shown(lattice, 0) == [[7, 10], [EOS, 8, 11], [EOS, PAD], [PAD]]
    assert shown(lattice, 1) == [[7, 10], [8, 11], [9], [EOS]]
    ends = (lattice.tokens == EOS) & lattice.nodes
    assert (lattice.log_probabilities[ends] == 0).all()
    assert lattice.log_probabilities[1, 0, 0].item() == pytest.approx(math.log(0.5))


@settings(max_examples=40)
@given(corpora(), st.integers(1, 5), st.integers(0, 3), st.integers(3, 6), st.integers(0, 2**32))
def test_every_path_is_a_translation_of_an_allowed_length(
    pairs: list[Pair], length: int, window: int, count: int, seed: int
) -> None:
    model = make_model(pairs)
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, TYPES, (2, length), generator=generator)
    lattice = model.lattice(source, count, "interpolated", window=window)
    rows, positions, candidates_ = lattice.tokens.shape
    shape = (rows, positions - 1, candidates_, candidates_)
    scores = torch.randn(shape, generator=generator)
    found = lattice.search(edges=scores, count=5)
    tokens = lattice.read(found.choices)
    for row in range(rows):
        for path, score in zip(tokens[row].tolist(), found.scores[row].tolist(), strict=True):
            if score == -math.inf:
                continue
            end = path.index(EOS)
            assert lattice.lengths.shortest[row] <= end <= lattice.lengths.longest[row]
            assert all(token not in (PAD, EOS) for token in path[:end])
            assert path[end + 1 :] == [PAD] * (positions - end - 1)
    best = lattice.search(edges=scores)
    assert torch.equal(best.choices, found.choices[:, 0])
    assert (best.scores > -torch.inf).all()


def test_padding_costs_nothing_and_lengths_compete_by_score() -> None:
    lengths = LengthWindow(torch.tensor([1]), torch.tensor([2]))
    lattice = make_model(MONOTONE).lattice(torch.tensor([[4, 5]]), 4, lengths=lengths)
    assert shown(lattice, 0) == [[7, 10], [EOS, 8, 11], [EOS, PAD]]
    edges = torch.full((1, 2, 4, 4), -1.0)
    first = torch.tensor([[-0.5, -0.25, 9.0, 9.0]])  # no candidate where 9 stands
    short = lattice.search(first, edges)
    assert lattice.read(short.choices).tolist() == [[10, EOS, PAD]]
    assert short.scores.tolist() == [-1.25]
    assert short.position_scores.tolist() == [[-0.25, -1.0, 0.0]]
    edges[0, 0, 1, 2] = edges[0, 1, 2, 0] = -0.25
    long = lattice.search(first, edges)
    assert lattice.read(long.choices).tolist() == [[10, 11, EOS]]
    assert long.scores.tolist() == [-0.75]


def test_a_position_without_candidate_holds_the_unknown_word() -> None:
    source = torch.tensor([[11, 11], [EOS, PAD]])  # words that were never seen, and none at all
    for smoothing in get_args(candidates.Smoothing):
        lattice = make_model(MONOTONE).lattice(source, 2, smoothing, window=0)
        assert shown(lattice, 0) == [[UNK], [UNK], [EOS]]
        assert shown(lattice, 1) == [[UNK], [EOS], [PAD]]


def test_one_candidate_is_enough_for_one_length() -> None:
    lattice = make_model(MONOTONE).lattice(torch.tensor([[4, 5, 6]]), 1, window=0)
    assert lattice.tokens.tolist() == [[[7], [8], [9], [EOS]]]
    assert lattice.read(lattice.search().choices).tolist() == [[7, 8, 9, EOS]]


def test_the_device_is_never_asked() -> None:
    # Tensors without data: anything that needed a value on the host would fail.
    model = make_model(MONOTONE).to("meta")
    source = torch.empty(2, 5, dtype=torch.int64, device="meta")
    lengths = LengthWindow(torch.tensor([2, 1]), torch.tensor([8, 3]))
    lattice = model.lattice(source, 4, "interpolated", lengths)
    assert lattice.read(lattice.search(count=3).choices).shape == (2, 3, 9)


def test_what_does_not_fit_is_refused() -> None:
    model, source = make_model(MONOTONE), torch.tensor([[4, 5]])
    with pytest.raises(ValueError, match="shorter than 4096"):
        model.lattice(source, 4, lengths=LengthWindow(*[torch.tensor([5000])] * 2))
    with pytest.raises(ValueError, match=r"position weight is 1\.5"):
        Weights(0.5, 1.5)
    with pytest.raises(
        ValueError, match="pair 8 has 1 source and 2 target tokens but the link 1-0"
    ):
        flat([([4], [5, 6], [(0, 0)]), ([4], [5, 6], [(1, 0)])]).check(6)
    with pytest.raises(ValueError, match="4100 tokens"):
        flat([([4] * 4100, [5], [])]).check()
