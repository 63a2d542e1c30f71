"""The order in which an interleaved decoder writes: h directions, c words of each per step (Zhang et al. 2020).

A sentence of n words is laid out in *slots*, in the order of writing. Worked example, n = 5 (words A B C D E):

    h = 1    A B C D E </s>        left to right
    h = 2    A E B D C </s>        from both ends to the middle (Eq. 6)
    h = 4    A C D E B </s>        two segments, A B C and D E, each from both ends (Eq. 9)

Slot t belongs to direction t mod h and holds that direction's word number t div h. A step writes z = h * c slots.
``</s>`` follows the last word, so the slot of ``</s>`` is the number of words and nothing else has to be known to
find the reading order again. Slots behind it hold nothing.

Segments are as equal as slots permit: when n is no multiple of h, the first n mod h directions have one word more. Were
they strictly equal, the last step would hand words to slots of other directions, and no slot could know whose word it
is asked for.
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Tells how a decoder writes.

    Attributes:
        directions: h, 1 or an even number.
        words_per_direction: c.
        vanilla_mask: attention inside a step is causal, M(1, 1) instead of M(h, c) (Table 2).
        vanilla_positions: positions are those of the ordinary Transformer, Eq. 5 (Table 2).
        middle_to_side: every direction begins where it would have ended (Table 2).
        independent: a slot sees its own direction only (Table 2).
        one_by_one: one slot per step in the order of the directions, the autoregressive twin that the mutual
            information of Table 3 is measured against.
    """

    directions: int = 1
    words_per_direction: int = 1
    vanilla_mask: bool = False
    vanilla_positions: bool = False
    middle_to_side: bool = False
    independent: bool = False
    one_by_one: bool = False

    @property
    def step(self) -> int:
        """z: slots per step, and how far the decoder's input is shifted."""
        return 1 if self.one_by_one else self.directions * self.words_per_direction

    def width(self, tokens: int) -> int:
        """Slots of the whole steps that hold ``tokens`` tokens (``</s>`` counts as one)."""
        return -(-tokens // self.step) * self.step


def writing_order(lengths: Tensor, width: int, geometry: Geometry) -> Tensor:
    """Indices of the word that each slot holds (Eq. 6 and 9).

    Args:
        lengths: (B,) int64, words of each sentence without ``</s>``.
        width: number of slots W, more than the longest sentence has words.

    Returns:
        (B, W) int64: index of the word in slot t; t itself from ``</s>`` on. A permutation of 0..W-1 in every row.
    """
    slot = torch.arange(width, device=lengths.device)
    if geometry.directions == 1:
        return slot.expand(len(lengths), width)
    count, h = lengths.unsqueeze(1), geometry.directions
    direction, turn = slot % h, slot // h
    steps, rest = count // h, count % h
    left = direction - direction % 2  # the left-to-right direction of the same segment
    start = steps * left + torch.minimum(rest, left)  # (B, W) first word of the segment
    end = steps * (left + 2) + torch.minimum(rest, left + 2)
    if geometry.middle_to_side:
        turn = steps + (direction < rest) - 1 - turn
    word = torch.where(direction == left, start + turn, end - 1 - turn)
    return torch.where(slot < count, word, slot)


def inverse(order: Tensor) -> Tensor:
    """The inverse of each row's permutation, (B, W): in which slot each word stands."""
    slots = torch.arange(order.size(1), device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, slots)


@functools.cache
def reading_order(words: int, geometry: Geometry) -> list[int]:
    """Slots in which each word and ``</s>`` stand; shared, so not to be changed."""
    slots: list[int] = inverse(writing_order(torch.tensor([words]), words + 1, geometry))[
        0
    ].tolist()
    return slots


def shifted_slots(previous: Tensor, order: Tensor, step: int, pad: int) -> Tensor:
    """The decoder's input: the words in writing order, shifted by one step.

    Args:
        previous: (B, T) start symbol and words in reading order, padded on the right.
        order: (B, W) of :func:`writing_order`, W >= T.
        step: z; as many slots begin with the start symbol (Algorithm 1, line 1).

    Returns:
        (B, W) int64: slot t reads what slot t - z wrote.
    """
    width = order.size(1)
    words = F.pad(previous[:, 1:], (0, width + 1 - previous.size(1)), value=pad)
    written = words.gather(1, order)  # padding stays where it is
    return torch.cat([previous[:, :1].expand(-1, step), written[:, : width - step]], dim=1)


def pick(x: Tensor, slots: Tensor) -> Tensor:
    """Rows of x (B, W, C) by index (B, T) -> (B, T, C)."""
    first = torch.arange(0, x.size(0) * x.size(1), x.size(1), device=x.device).unsqueeze(1)
    return x.flatten(0, 1).index_select(0, (first + slots).flatten()).view(*slots.shape, -1)


def slot_positions(count: int, geometry: Geometry) -> tuple[Tensor, Tensor | None]:
    """Positions of slots, for its position embedding.

    Returns:
        (W,) int64 positions, negative in right-to-left directions of h = 2 (Eq. 7), the index of the turn for h > 2
        (Eq. 10); and (W,) the directions, which Eq. 10 alone embeds, else None.
    """
    slot = torch.arange(count)
    h = geometry.directions
    if h == 1 or geometry.vanilla_positions:
        return slot, None
    if h == 2:
        return (slot // 2 + 1) * (1 - 2 * (slot % 2)), None
    return slot // h, slot % h


def hidden_slots(first: int, count: int, geometry: Geometry, device: torch.device) -> Tensor:
    """The self-attention mask of Eq. 4 and of its ablations.

    Args:
        first: the first query slot.
        count: the number of key slots; queries are the slots ``first`` to ``count`` - 1.

    Returns:
        (``count`` - ``first``, ``count``) bool, true where a query does not see a key.
    """
    key = torch.arange(count, device=device)
    query = key[first:].unsqueeze(1)
    group = 1 if geometry.vanilla_mask else geometry.step
    hidden = key // group > query // group
    if geometry.independent:
        hidden |= key % geometry.directions != query % geometry.directions
    return hidden
