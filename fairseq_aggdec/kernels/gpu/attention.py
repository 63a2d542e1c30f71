"""Attention in one launch on a GPU: ``source/attention.cu``.

:class:`SlotAttention` has PyTorch's operators beside it.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.kernels.gpu.arguments import LARGEST, PRECISIONS
from fairseq_aggdec.kernels.gpu.operators import Twins, ops, tries, usable
from fairseq_aggdec.windows.grid import WORD, GridTree, GridWindow, Visibility
from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.window import Window

# What the fused kernel knows (source/attention.cu): numbers of a head.
WIDEST = 128
TRIED = dict(
    zip(PRECISIONS, (40, 64, 128), strict=True)
)  # of those with which a precision is tried
SPAN = 70  # with which windows are tried
TILE = 4  # slots of a block of `attend_slots`
# Up to here every slot has a block: a GPU runs all of them at once. A slot gets the same numbers either way.
FEW_BLOCKS = 512
# Slots times keys from which on tensor cores, which PyTorch's attention uses, save more than its launches cost.
MOST_SCORES = 2**17


def reads_heads(size: int) -> bool:
    """Tells whether the fused kernel knows heads of D numbers."""
    return size % 8 == 0 and size <= WIDEST


Operators = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


class SlotAttention(NamedTuple):
    """Attention of the slots of windows in a layer: by the kernels, or by PyTorch's operators.

    Attributes:
        heads: H.
        operators: attention of queries (R, H, W, D) to keys and values (R, H, L, D) under a mask.
        allowed: False: the operators run in any case.
    """

    heads: int
    operators: Operators
    allowed: bool

    def fused(self, window: Window, keys: int, like: Tensor) -> bool:
        """Tells whether the kernels attend, on a GPU.

        Args:
            window: whose slots attend.
            keys: places of each row.
            like: (N, C), has the device and the dtype.
        """
        known = self.allowed and isinstance(window, GridWindow) and like.dtype in PRECISIONS
        if not known or not reads_heads(like.size(-1) // self.heads):
            return False
        few = window.width == 1 or window.rows * window.width * keys <= MOST_SCORES
        few = (
            few and 3 * keys * like.size(-1) <= LARGEST
        )  # numbers of a row, which the kernel counts
        return few and usable(like.device, attends_alike, like.dtype)

    def seen(self, x: Tensor, window: Window, span: int | None) -> Tensor | Visibility | None:
        """Gives what the slots of x (N, C) see, as :meth:`to_itself` reads it: for PyTorch's attention a mask."""
        if isinstance(window, GridWindow) and self.fused(window, window.end, x):
            return window.visibility(span)
        return None if window.alone else window.mask(x.dtype, span)

    def to_itself(
        self, qkv: Tensor, window: Window, cache: Tensor, seen: Tensor | Visibility | None
    ) -> Tensor:
        """Self-attention: qkv (N, 3C) -> (N, C); keys and values go to the cache (B, capacity, 2C) first.

        Args:
            seen: of :meth:`seen`.
        """
        cache = cache[:, : window.end]
        if isinstance(seen, Visibility):
            return attend_own(qkv, cache, window.width, self.heads, seen)
        queries, keys_values = qkv.tensor_split([qkv.size(-1) // 3], -1)
        if window.level and window.dense:
            cache[:, window.starts[0] :] = keys_values.view(window.rows, window.width, -1)
        else:
            cache[window.row_of, window.positions] = keys_values
        return self._plain(queries, split(cache, self.heads), seen, window)

    def source(self, q: Tensor, window: Window, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Attention to the source: q (N, C), memory (2, B, H, S, D), mask (B or 1, 1, 1, S) -> (N, C)."""
        if self.fused(window, memory.size(3), q):
            return attend_source(q, memory, mask, window.width)
        return self._plain(q, memory, mask, window)

    def _plain(self, q: Tensor, kv: Tensor, mask: Tensor | None, window: Window) -> Tensor:
        """Queries (N, C) of a window over keys and values (2, B, H, L, D) -> (N, C)."""
        k, v = kv.unbind(0)
        # (N, C) -> (B, H, W, D)
        grid = window.to_grid(q).view(window.rows, window.width, self.heads, -1).transpose(1, 2)
        return window.from_grid(self.operators(grid, k, v, mask).transpose(1, 2))


def attend_own(
    qkv: Tensor,
    cache: Tensor,
    width: int,
    heads: int,
    visibility: Visibility,
    few: int = FEW_BLOCKS,
) -> Tensor:
    """Stores the keys and values of a window and attends, in one launch.

    Args:
        qkv: (R W, 3C), queries, keys and values of R rows of W slots.
        cache: (R, L, 2C), written in place.
        width: W.
        heads: H.
        visibility: what each slot sees of the L places.
        few: each slot has a block of its own if there are at most this many blocks.

    Returns:
        (R W, C)
    """
    out = qkv.new_empty(qkv.size(0), qkv.size(1) // 3)
    steps = cache.stride(0), cache.stride(1), out.size(1)
    _launch(qkv, cache, (cache.size(1), *steps), (width, heads), visibility, out, few)
    return out


def attend_source(
    q: Tensor, memory: Tensor, mask: Tensor | None, width: int, few: int = FEW_BLOCKS
) -> Tensor:
    """Queries (R W, C) over keys and values (2, R, H, S, D) of sources, mask (R or 1, 1, 1, S) -> (R W, C)."""
    out = torch.empty_like(q)
    _, _, heads, keys, _ = memory.shape
    steps = memory.stride(1), memory.stride(3), memory.stride(0)
    _launch(q, memory, (keys, *steps), (width, heads), Visibility(mask=mask), out, few)
    return out


def attend_all(qkv: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Attention of all tokens of a source to each other, in one launch.

    Args:
        qkv: (R L, 3C), queries, keys and values of R sources of L tokens.
        mask: additive, (R, 1, 1, L).
        heads: H.

    Returns:
        (R L, C)
    """
    length, channels = mask.size(3), qkv.size(1) // 3
    out, step = qkv.new_empty(len(qkv), channels), qkv.size(1)
    keys = length, length * step, step, channels
    _launch(qkv, qkv[:, channels:], keys, (length, heads), Visibility(mask=mask), out, FEW_BLOCKS)
    return out


def _launch(
    queries: Tensor,
    kept: Tensor,
    keys: tuple[int, int, int, int],
    shape: tuple[int, int],
    visibility: Visibility,
    out: Tensor,
    few: int,
) -> None:
    """Attention of slots.

    Args:
        queries: (R W, C or more).
        kept: keys and values.
        keys: how many there are, steps from a row's to the next row's, to the next key, to a key's value.
        shape: W and H.
        visibility: what each slot sees.
        out: (R W, C), written.
    """
    (slots, channels), (width, heads), (at, last, bits, mask, span) = out.shape, shape, visibility
    of_mask = [0, 0]
    if mask is not None:
        mask = mask.to(out.dtype)  # in an ensemble it may be in the precision of another model
        of_mask = [mask.stride(dim) if mask.size(dim) > 1 else 0 for dim in (0, 2)]
    blocks, name = slots * heads, "attend"
    if width > 1 and blocks > few:
        blocks, name = slots // width * heads * -(-width // TILE), "attend_slots"
    size = channels // heads
    getattr(ops(), name)(
        *(blocks, PRECISIONS[out.dtype], width, heads, size, keys[0], queries.stride(0), *keys[1:]),
        *(*of_mask, 0 if bits is None else bits.size(1), -1 if span is None else span),
        *(size**-0.5, queries, kept, at, last, bits, mask, out),
    )


def numbers_to_time(device: torch.device, rows: int, dtype: torch.dtype) -> "RandomAttention":
    """Random numbers of the model with which kernels are timed, a slot in each row."""
    at = torch.full((rows,), gpu.KEYS // 2, device=device)
    return RandomAttention(
        GridWindow(at, at, (rows, 1, gpu.KEYS)), dtype, gpu.HEADS, gpu.CHANNELS // gpu.HEADS
    )


def _attention_twins(device: torch.device, rows: int, dtype: torch.dtype) -> Twins:
    numbers = numbers_to_time(device, rows, dtype)
    window, cache, qkv = numbers.window, numbers.cache.contiguous(), numbers.qkv
    mask, visibility = window.mask(dtype), window.visibility()

    def plain() -> Tensor:
        queries, keys_values = qkv.tensor_split([gpu.CHANNELS], 1)
        cache[window.row_of, window.positions] = keys_values
        k, v = split(cache, gpu.HEADS).unbind(0)
        grid = queries.view(rows, 1, gpu.HEADS, -1).transpose(1, 2)
        return F.scaled_dot_product_attention(grid, k, v, mask).transpose(1, 2).flatten(0, 2)

    return Twins(lambda: attend_own(qkv, cache, 1, gpu.HEADS, visibility), plain)


@tries("attend", "attend_slots", twins=_attention_twins, precise=True)
def attends_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernels give in a precision what PyTorch's attention gives, for windows of every kind."""
    heads, size = 2, TRIED[dtype]
    return all(
        alike(window, RandomAttention(window, dtype, heads, size), mask, visibility, few)
        for (window, mask, visibility), few in product(_windows(device, dtype), (0, FEW_BLOCKS))
    )


def _windows(
    device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[GridWindow, Tensor, Visibility]]:
    """Windows that kernels are tried with, and what their slots see."""
    first = torch.tensor([[0], [58], [7]])
    used = torch.minimum(torch.arange(5), first % 5)
    for places in (first, first + used):
        at, shape = places.flatten().to(device), (*places.shape, WORD)
        last = places[:, -1:].expand_as(places).flatten().to(device)
        seen = 1 << at
        seen |= seen - 1 & 5
        for window in (
            GridWindow(at, at, shape, last),
            GridTree(at, at, shape, at, seen.unsqueeze(1)),
        ):
            yield window, window.mask(dtype), window.visibility()
    # More keys than all threads read at once; each slot sees some of them, as in a beam, or only the nearest.
    places = 2 * first + used
    at, keys = places.flatten().to(device), 3 * WORD
    window = GridWindow(at, at, (*places.shape, keys))
    yield window, window.mask(dtype, SPAN), window.visibility(SPAN)
    mask = window.mask(dtype).clone()
    chance = torch.Generator().manual_seed(7)
    hidden = torch.rand(mask.shape, generator=chance).to(device) < 0.5
    hidden.scatter_(3, at.view(len(first), 1, -1, 1), False)
    mask.masked_fill_(hidden, -torch.inf)
    yield window, mask, Visibility(at, mask=mask)


class RandomAttention:
    """Random numbers that a window may attend to.

    Args:
        window: unused slots repeat the last of their row.
        dtype: of the numbers.
        heads, size: H and D.
        sources: S.
        seed: of the numbers.

    Attributes:
        window: as given.
        qkv: (R W, 3C); ``cache``, ``memory``: (R, L, 2C) and (R, S, 2C); ``of_source``: a mask (R, 1, 1, S).
    """

    def __init__(
        self,
        window: GridWindow,
        dtype: torch.dtype,
        heads: int,
        size: int,
        sources: int = 9,
        seed: int = 7,
    ):
        (rows, keys), width, device = window.size, window.width, window.tokens.device
        self.window, self.heads, channels = window, heads, heads * size
        shape = rows, width + keys + sources, 3 * channels
        made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)
        slots = window.at.view(rows, width, 1) - window.at.view(rows, width, 1)[:, :1]
        self.qkv = made.gather(1, slots.expand(-1, -1, 3 * channels)).flatten(0, 1)
        self.cache, self.memory = made[:, width:, channels:].split([keys, sources], 1)
        padded = torch.arange(rows, device=device).unsqueeze(1) % sources
        padding = torch.arange(sources, device=device) < padded
        self.of_source = additive_mask(padding, dtype)


def alike(
    window: GridWindow,
    numbers: RandomAttention,
    mask: Tensor,
    visibility: Visibility,
    few: int = FEW_BLOCKS,
) -> bool:
    """Tells whether both attentions agree, with garbage wherever no slot looks.

    Args:
        window, numbers: what attends to what.
        mask, visibility: what its slots see, each its own place at least.
        few: as of :func:`attend_own`.
    """
    qkv, heads, of_source = numbers.qkv, numbers.heads, numbers.of_source
    queries, keys_values = qkv.tensor_split([qkv.size(1) // 3], 1)
    plain, kept = (_hidden(numbers.cache, mask, fill) for fill in (0.0, torch.nan))
    memory, garbage = (_hidden(numbers.memory, of_source, fill) for fill in (0.0, torch.nan))
    plain[window.row_of, window.positions] = keys_values
    source = split(garbage, heads), of_source, window.width, few
    attended = [attend_own(qkv, kept, window.width, heads, visibility, few)]
    attended += [attend_source(queries.contiguous(), *source)]
    grid = queries.float().view(window.rows, window.width, heads, -1).transpose(1, 2)
    for one, keys, hidden in zip(attended, (plain, memory), (mask, of_source), strict=True):
        k, v = split(keys, heads).float().unbind(0)
        wanted = F.scaled_dot_product_attention(grid, k, v, hidden.float())
        most = max(4 * torch.finfo(one.dtype).eps, 2e-3)
        if not (one.float() - wanted.transpose(1, 2).reshape(one.shape)).abs().amax() <= most:
            return False
    return torch.equal(_hidden(kept, mask, 0.0), plain)


def split(kv: Tensor, heads: int) -> Tensor:
    """Keys and values (R, L, 2C) -> (2, R, H, L, D), a view."""
    return kv.unflatten(2, (2, heads, -1)).permute(2, 0, 3, 1, 4)


def _hidden(kv: Tensor, mask: Tensor, fill: float) -> Tensor:
    """Keys and values (R, L, 2C) with ``fill`` where a mask (R, 1, W or 1, L) hides them from all slots."""
    return kv.masked_fill((mask == -torch.inf).all(2).transpose(1, 2), fill)
