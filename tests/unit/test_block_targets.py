"""Drawn prefixes, blocks and revealed slots, against one row and one number at a time."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_aggdec.data.block_targets import (
    choose_revealed,
    cut_blocks,
    draw_prefix_lengths,
    uniform,
)

PAD, EOS, MASK = 1, 2, 99
WORDS = st.lists(st.integers(4, 9), max_size=6)


def padded(rows: list[list[int]], left: bool = False) -> Tensor:
    width = max(map(len, rows))
    fill = [[PAD] * (width - len(row)) for row in rows]
    return torch.tensor(
        [[*pad, *row] if left else [*row, *pad] for row, pad in zip(rows, fill, strict=True)]
    )


@given(st.lists(WORDS, min_size=1, max_size=4), st.integers(1, 5), st.booleans(), st.data())
def test_blocks_against_one_row_at_a_time(
    sentences: list[list[int]], block_size: int, left: bool, data: st.DataObject
) -> None:
    rows = [[*words, EOS] for words in sentences]
    prefixes = [data.draw(st.integers(0, len(row) - 1)) for row in rows]
    target = padded(rows, left)
    tokens, block = cut_blocks(target, torch.tensor(prefixes), block_size, PAD, MASK)
    room = target.size(1) - 1
    for row, length, found_tokens, found_block in zip(
        rows, prefixes, tokens.tolist(), block.tolist(), strict=True
    ):
        assert found_tokens == [PAD] * (room - length) + row[:length] + [MASK] * block_size
        following = row[length : length + block_size]
        assert found_block == following + [PAD] * (block_size - len(following))


def test_every_prefix_length_is_drawn_equally_often() -> None:
    count, longest = 4000, 5
    ids = torch.arange(count)
    for length in range(1, longest + 1):
        drawn = draw_prefix_lengths(torch.full((count,), length), ids, seed=1, update=3)
        share = torch.bincount(drawn, minlength=length) / count
        assert len(share) == length
        assert (share - 1 / length).abs().max() < 0.03


def test_a_sentence_draws_the_same_in_any_batch_and_another_at_another_update() -> None:
    ids, lengths = torch.arange(50), torch.full((50,), 1000)
    drawn = draw_prefix_lengths(lengths, ids, seed=1, update=7)
    assert torch.equal(drawn[20:], draw_prefix_lengths(lengths[20:], ids[20:], seed=1, update=7))
    for other in ({"seed": 2, "update": 7}, {"seed": 1, "update": 8}, {"seed": 1, "update": -1}):
        same = (drawn == draw_prefix_lengths(lengths, ids, **other)).sum()
        assert same < 5


def mix(bits: int) -> int:
    """SplitMix64 as published, on unsigned numbers."""
    bits = (bits + 0x9E3779B97F4A7C15) % 2**64
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


def test_the_mixing_is_that_of_java() -> None:
    """The first three numbers of ``new java.util.SplittableRandom(1234567).nextLong()``, unsigned (tests/origins)."""
    found = [mix(1234567 + number * 0x9E3779B97F4A7C15) for number in range(3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(0, 2**62), st.integers(-1, 2**40), st.integers(0, 2**40), st.integers(0, 50))
def test_uniform_against_unsigned_numbers(seed: int, update: int, key: int, other: int) -> None:
    bits = seed
    for value in (update, key, other):
        bits = mix(bits) ^ value % 2**64
    expected = (mix(bits) >> 11) / 2**53
    found = uniform(seed, update, torch.tensor([key]), torch.tensor([other]))
    assert found.tolist() == [expected]
    assert 0 <= expected < 1


@given(st.data())
def test_so_many_slots_are_revealed(data: st.DataObject) -> None:
    block_size, ratio = data.draw(st.integers(1, 8)), data.draw(st.sampled_from([0, 0.3, 0.5, 1]))
    lengths = data.draw(st.lists(st.integers(1, block_size), min_size=1, max_size=4))
    distance = [data.draw(st.integers(0, length)) for length in lengths]
    there = torch.arange(block_size) < torch.tensor(lengths).unsqueeze(1)
    ids = torch.arange(len(lengths))
    revealed = choose_revealed(torch.tensor(distance), there, ratio, ids, seed=1, update=2)
    assert not (revealed & ~there).any()
    assert revealed.sum(1).tolist() == [math.floor(wrong * ratio) for wrong in distance]


def test_every_slot_is_revealed_equally_often() -> None:
    count = 3000
    there = torch.tensor([True, True, True, True, False]).expand(count, 5)
    distance = torch.full((count,), 4)
    revealed = choose_revealed(distance, there, 0.5, torch.arange(count), seed=1, update=2)
    share = revealed.double().mean(0)
    assert (share[:4] - 0.5).abs().max() < 0.04
