"""Targets of a non-autoregressive drafter: random prefixes of the targets and the blocks after them.

Worked example, k = 3. Two targets are ``a b c d </s>`` and ``e </s>``; the drawn prefix lengths are 3 and 0. With
``_`` for padding and ``M`` for a mask slot, the decoder reads and must say

    _ a b c M M M        d </s> _
    _ _ _ _ M M M        e </s> _

The block stands in the same k columns of every row; there are always k slots, as in decoding, and those past ``</s>``
have no target. Random numbers are a function of what they are for (seed, update, sentence), so that a sentence gets the
same prefix however the data is cut into batches and whatever device it is on.
"""

import torch
from torch import Tensor


def draw_prefix_lengths(lengths: Tensor, ids: Tensor, seed: int, update: int) -> Tensor:
    """Uniformly drawn p, 0 <= p < m, of each row (B,) int64; Ge et al., section 3.2.1.

    Args:
        lengths: (B,) m, target lengths with ``</s>``.
        ids: (B,) int64, the sentences' numbers in the data set.
        seed: of the training run.
        update: number of the update; -1 for the prefixes of validation, which are always the same.
    """
    return (uniform(seed, update, ids) * lengths).long()


def cut_blocks(
    target: Tensor, prefix_lengths: Tensor, block_size: int, pad: int, mask: int
) -> tuple[Tensor, Tensor]:
    """The decoder's input and the targets of its slots.

    Args:
        target: (B, T) int64, padded at either side.
        prefix_lengths: (B,) int64, less than the rows' target lengths.
        block_size: k.
        pad: padding index.
        mask: stands for a mask slot in the input; no index of the dictionary.

    Returns:
        input (B, T - 1 + k): the prefix, padded at the left, and k mask slots;
        block (B, k): the tokens that follow the prefix, ``pad`` past ``</s>``.
    """
    rows, width = target.shape
    first = (target != pad).int().argmax(1, keepdim=True)  # (B, 1), behind the left padding
    prefix_lengths = prefix_lengths.unsqueeze(1)
    column = torch.arange(width - 1, device=target.device) - (width - 1) + prefix_lengths
    prefix = target.gather(1, (first + column).clamp(min=0)).masked_fill_(column < 0, pad)
    slots = target.new_full((rows, block_size), mask)
    place = first + prefix_lengths + torch.arange(block_size, device=target.device)
    block = target.gather(1, place.clamp(max=width - 1)).masked_fill_(place >= width, pad)
    return torch.cat([prefix, slots], dim=1), block


def choose_revealed(
    distance: Tensor, there: Tensor, ratio: float, ids: Tensor, seed: int, update: int
) -> Tensor:
    """Slots that glancing gives away, uniformly chosen: bool (B, k); Qian et al. (2021).

    Args:
        distance: (B,) int64, how many slots the first pass got wrong (Hamming distance to the targets).
        there: (B, k) bool, slots that have a target.
        ratio: of the distance that is revealed, rounded down; at most 1.
        ids, seed, update: as in :func:`draw_prefix_lengths`.
    """
    count = (distance.double() * ratio).long().unsqueeze(1)
    slot = torch.arange(there.size(1), device=there.device)
    luck = uniform(seed, update, ids.unsqueeze(1), slot)  # (B, k)
    rank = luck.masked_fill(~there, 2.0).argsort(1).argsort(1)
    return rank < count


def uniform(seed: int, update: int, *keys: Tensor) -> Tensor:
    """Numbers in [0, 1), float64, that depend on the keys alone (int64, broadcast against each other)."""
    bits = torch.tensor(seed, device=keys[0].device)
    bits = _mix(bits) ^ update
    for key in keys:
        bits = _mix(bits) ^ key
    return _shift(_mix(bits), 11).double() * 2.0**-53


def _mix(bits: Tensor) -> Tensor:
    """One round of SplitMix64 on int64, whose products wrap around."""
    bits = bits - 0x61C8864680B583EB
    bits = (bits ^ _shift(bits, 30)) * -0x40A7B892E31B1A47
    bits = (bits ^ _shift(bits, 27)) * -0x6B2FB644ECCEEE15
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, places: int) -> Tensor:
    """To the right, filled with zeros as if unsigned."""
    return (bits >> places) & ((1 << (64 - places)) - 1)
