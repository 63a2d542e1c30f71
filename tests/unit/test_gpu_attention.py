"""The fused attention of a GPU, compiled as C++, against PyTorch's."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from fairseq_aggdec.kernels.gpu import attention
from fairseq_aggdec.kernels.gpu.attention import (
    RandomAttention,
    SlotAttention,
    alike,
    attend_own,
    attend_source,
)
from fairseq_aggdec.kernels.gpu.operators import PRECISIONS
from fairseq_aggdec.windows.grid import WORD, GridTree, GridWindow, Visibility
from fairseq_aggdec.windows.window import Window

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def window_of(
    places: list[list[int]], keys: int, device: torch.device = CPU, block: bool = False
) -> GridWindow:
    """A window over the given places; ``block``: each slot sees all slots of its row."""
    at = torch.tensor(places, device=device)
    last = at[:, -1:].expand_as(at).flatten() if block else None
    return GridWindow(at.flatten(), at.flatten(), (*at.shape, keys), last)


def random_window(chance: random.Random, device: torch.device) -> GridWindow:
    """Rows of which some have ended and some use fewer slots than there are; lines, blocks or trees."""
    rows, width = chance.randint(1, 4), chance.randint(1, 9)
    keys = WORD * chance.randint(1, 3)
    places = []
    for _ in range(rows):
        used = chance.randint(1, width)
        first = chance.choice([0, chance.randint(0, keys - used)])
        places.append([first + min(slot, used - 1) for slot in range(width)])
    window = window_of(places, keys, device, chance.random() < 0.5)
    if chance.random() < 0.5:
        return window
    words = []
    for place in window.at.tolist():
        seen = chance.getrandbits(place + 1) | 1 << place
        packed = bytearray(seen.to_bytes(keys // 8, "little"))
        words.append(torch.frombuffer(packed, dtype=torch.long))
    bits = torch.stack(words).to(device)
    return GridTree(window.at, window.at, (rows, width, keys), window.at, bits)


def compare_attention(seed: int, device: torch.device = CPU) -> None:
    """A window of any kind, in any precision, with any number of heads and keys."""
    chance = random.Random(seed)
    window, dtype = random_window(chance, device), chance.choice(list(PRECISIONS))
    tree = isinstance(window, GridTree)
    span = None if tree else chance.choice([None, 0, chance.randint(1, 70)])
    heads, size = chance.randint(1, 3), 8 * chance.randint(1, 16)
    numbers = RandomAttention(window, dtype, heads, size, chance.randint(1, 70), seed)
    mask, visibility = window.mask(dtype, span), window.visibility(span)
    if chance.random() < 0.3:
        visibility = Visibility(window.at, mask=mask)
    assert alike(window, numbers, mask, visibility, chance.choice([0, attention.FEW_BLOCKS])), seed


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_slot_gets_the_same_numbers_whatever_is_beside_it(dtype: torch.dtype) -> None:
    """By a block of its own or with other slots, over few places or many, in any row."""
    window = window_of([[50 + slot for slot in range(7)], [3] * 7], 2 * WORD)
    numbers = RandomAttention(window, dtype, 2, 40)
    found = [
        attend_own(numbers.qkv, numbers.cache[:, :keys].clone(), 7, 2, window.visibility(), few)
        for few in (0, attention.FEW_BLOCKS)
        for keys in (WORD, 2 * WORD)
    ]
    assert all(torch.equal(found[0], other) for other in found[1:])
    one = window_of([[50]], WORD)
    own = attend_own(numbers.qkv[:1], numbers.cache[:1, :WORD].clone(), 1, 2, one.visibility())
    assert torch.equal(own[0], found[0][0])
    assert not found[0][7:].diff(dim=0).any()  # slots that the row does not use


def test_nan_is_seen_by_those_who_see_it() -> None:
    """What a model makes of its numbers is not hidden; what is hidden does no harm."""
    window = window_of([[8, 9, 10]], WORD)
    numbers = RandomAttention(window, torch.float32, 1, 8)
    numbers.qkv[2] = torch.nan
    numbers.cache[0, 11:] = torch.inf
    found = attend_own(numbers.qkv, numbers.cache, 3, 1, window.visibility())
    assert found.isnan().all(1).tolist() == [False, False, True] and found[:2].isfinite().all()
    numbers.cache[0, 2] = torch.nan
    assert attend_own(numbers.qkv, numbers.cache, 3, 1, window.visibility()).isnan().all()


def test_a_slot_that_sees_nothing_gets_numbers() -> None:
    hidden = torch.full((1, 1, 1, 5), -torch.inf)
    q, memory = torch.ones(2, 16), attention.split(torch.full((1, 5, 32), torch.nan), 2)
    assert not attend_source(q, memory, hidden, 2).any()


def test_windows_that_the_kernel_does_not_take() -> None:
    narrow, wide = window_of([[0]], WORD), window_of([list(range(64))] * 40, WORD)
    like = torch.zeros(1, 64)
    attend = SlotAttention(1, F.scaled_dot_product_attention, allowed=True)
    assert attend.fused(narrow, WORD, like) and not attend.fused(wide, WORD, like)
    assert not attend._replace(allowed=False).fused(narrow, WORD, like)
    assert attend.fused(wide, WORD // 2, like)  # fewer keys
    assert not attend.fused(narrow, WORD, like.double())
    assert not attend.fused(narrow, WORD, like[:, :20])
    assert not attend.fused(narrow, WORD, torch.zeros(1, 136))
    assert not attend.fused(Window([1], [0], [1], device=CPU), WORD, like)


def compare_far_rows(device: torch.device = CPU) -> None:
    """Rows of a cache that begin beyond 2^31 numbers, as of 256 sentences of 4,096 keys: the bits of rows side by
    side."""
    step, rows, heads, size = 2**30, 3, 2, 8
    at = torch.tensor([5, 9, 20], device=device)
    window = GridWindow(at, at, (rows, 1, WORD))
    numbers = RandomAttention(window, torch.float16, heads, size)
    near = numbers.cache.contiguous()
    # Memory of a host is taken when it is written.
    all_of_it = torch.empty((rows - 1) * step + near[0].numel(), dtype=near.dtype, device=device)
    far = all_of_it.as_strided(near.shape, (step, near.size(2), 1))
    far.copy_(near)
    found, wanted = (
        attend_own(numbers.qkv, cache, 1, heads, window.visibility()) for cache in (far, near)
    )
    assert torch.equal(found, wanted) and torch.equal(far, near)


def test_rows_beyond_32_bits() -> None:
    compare_far_rows()
