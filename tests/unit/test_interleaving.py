"""Layout of interleaved sentences: order, restoring, shift, positions and mask against plain readings of the paper."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_aggdec.data.interleaving import (
    Geometry,
    hidden_slots,
    inverse,
    pick,
    reading_order,
    shifted_slots,
    slot_positions,
    writing_order,
)

DIRECTIONS = [1, 2, 4, 6, 8]
PAD, EOS = 1, 2


def plain_order(words: int, directions: int, middle_to_side: bool = False) -> list[int]:
    """Eq. 6 and 9 on lists: each direction's words, dealt out in turns."""
    if directions == 1:
        return list(range(words))
    turns = [list(range(words))[direction::directions] for direction in range(directions)]
    queues, first = [], 0
    for left, right in zip(turns[::2], turns[1::2], strict=True):
        size = len(left) + len(right)
        segment = list(range(first, first + size))
        queues += [segment[: len(left)], segment[len(left) :][::-1]]
        first += size
    if middle_to_side:
        queues = [queue[::-1] for queue in queues]
    order: list[int] = []
    while any(queues):
        order += [queue.pop(0) for queue in queues if queue]
    return order


def spelt(text: str, directions: int, **options: bool) -> str:
    geometry = Geometry(directions, **options)
    (order,) = writing_order(torch.tensor([len(text)]), len(text) + 1, geometry).tolist()
    return "".join((text + ".")[i] for i in order)


def test_worked_examples() -> None:
    assert spelt("ABCDE", 1) == "ABCDE."
    assert spelt("ABCDE", 2) == "AEBDC."  # Eq. 6 and Figure 1a
    assert spelt("ABCDEF", 2) == "AFBECD."
    assert spelt("ABCDEFGH", 4) == "ADEHBCFG."
    assert spelt("ABCDE", 4) == "ACDEB."
    assert spelt("ABCDEF", 2, middle_to_side=True) == "CDBEAF."
    assert spelt("ABCDE", 2, middle_to_side=True) == "CDBEA."


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    directions=st.sampled_from(DIRECTIONS),
    words=st.integers(1, 4),
    middle_to_side=st.booleans(),
)
def test_order_equals_the_plain_one_and_restores(
    lengths: list[int], directions: int, words: int, middle_to_side: bool
) -> None:
    geometry = Geometry(directions, words, middle_to_side=middle_to_side and directions > 1)
    width = geometry.width(max(lengths) + 1)
    assert width % geometry.step == 0
    assert 0 <= width - max(lengths) - 1 < geometry.step
    order = writing_order(torch.tensor(lengths), width, geometry)
    for row, length in zip(order.tolist(), lengths, strict=True):
        expected = plain_order(length, directions, geometry.middle_to_side)
        assert row == expected + list(range(length, width))
    slots = torch.arange(width).expand_as(order)
    assert torch.equal(order.gather(1, inverse(order)), slots)
    assert torch.equal(inverse(order).gather(1, order), slots)


@given(
    length=st.integers(0, 40),
    directions=st.sampled_from(DIRECTIONS),
    words=st.integers(1, 3),
    middle_to_side=st.booleans(),
)
def test_what_was_written_is_read_in_order(
    length: int, directions: int, words: int, middle_to_side: bool
) -> None:
    geometry = Geometry(directions, words, middle_to_side=middle_to_side and directions > 1)
    sentence = torch.arange(length + 1)
    written = sentence[[*plain_order(length, directions, geometry.middle_to_side), length]]
    assert torch.equal(written[reading_order(length, geometry)], sentence)


@given(length=st.integers(1, 60), directions=st.sampled_from([2, 4, 6]))
def test_a_slot_keeps_its_direction(length: int, directions: int) -> None:
    """Slots of even directions read from left to right, those of odd ones from right to left, neighbours in turn."""
    order = writing_order(torch.tensor([length]), length + 1, Geometry(directions))[0, :length]
    for direction in range(directions):
        words = order[direction::directions]
        assert torch.equal(words.diff(), torch.full((max(0, len(words) - 1),), (-1) ** direction))


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    directions=st.sampled_from([1, 2, 4]),
    words=st.integers(1, 3),
)
def test_input_is_shifted_by_one_step(lengths: list[int], directions: int, words: int) -> None:
    geometry = Geometry(directions, words)
    rows = [[10 + i for i in range(length)] for length in lengths]
    longest = max(lengths)
    previous = torch.tensor([[EOS, *row] + [PAD] * (longest - len(row)) for row in rows])
    width = geometry.width(longest + 1)
    order = writing_order(torch.tensor(lengths), width, geometry)
    slots = shifted_slots(previous, order, geometry.step, PAD)
    for row, found in zip(rows, slots.tolist(), strict=True):
        written = [row[i] for i in plain_order(len(row), directions)]
        expected = [EOS] * geometry.step + written
        assert found == (expected + [PAD] * width)[:width]


def test_pick_takes_rows_of_its_own_sentence() -> None:
    x = torch.arange(24.0).view(2, 4, 3)
    found = pick(x, torch.tensor([[3, 0], [1, 1]]))
    assert torch.equal(found, torch.stack([x[0, [3, 0]], x[1, [1, 1]]]))


def test_positions() -> None:
    eq5, eq7, eq10 = [0, 1, 2, 3, 4, 5], [1, -1, 2, -2, 3, -3], [0, 0, 0, 0, 1, 1]
    for geometry, positions, directions in (
        (Geometry(1, 3), eq5, None),
        (Geometry(2, 1), eq7, None),
        (Geometry(2, 3), eq7, None),
        (Geometry(2, 1, vanilla_positions=True), eq5, None),
        (Geometry(4, 1), eq10, [0, 1, 2, 3, 0, 1]),
        (Geometry(4, 1, vanilla_positions=True), eq5, None),
    ):
        found = slot_positions(6, geometry)
        assert found[0].tolist() == positions
        assert (found[1] if found[1] is None else found[1].tolist()) == directions


@given(
    directions=st.sampled_from([1, 2, 4]),
    words=st.integers(1, 3),
    first=st.integers(0, 5),
    more=st.integers(1, 12),
    vanilla=st.booleans(),
    independent=st.booleans(),
)
def test_mask_is_equation_4(
    directions: int, words: int, first: int, more: int, vanilla: bool, independent: bool
) -> None:
    geometry = Geometry(directions, words, vanilla_mask=vanilla, independent=independent)
    count = first + more
    found = hidden_slots(first, count, geometry, torch.device("cpu"))
    group = 1 if vanilla else directions * words
    for i in range(first, count):
        for j in range(count):
            sees = -(-(i + 1) // group) >= -(-(j + 1) // group)  # the paper counts from 1
            if independent:
                sees = sees and i % directions == j % directions
            assert bool(found[i - first, j]) is not sees


@pytest.mark.parametrize(("tokens", "width"), [(1, 4), (4, 4), (5, 8)])
def test_width_is_whole_steps(tokens: int, width: int) -> None:
    assert Geometry(2, 2).width(tokens) == width
    assert Geometry(4, one_by_one=True).width(tokens) == tokens
