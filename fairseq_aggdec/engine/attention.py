"""Attention other than PyTorch's: in one launch on a GPU; on a CPU without a library's sums, which round by where a
query stands."""

from collections.abc import Iterator
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.kernels.gpu.arguments import LARGEST, PRECISIONS
from fairseq_aggdec.kernels.gpu.operators import operators, tries, usable
from fairseq_aggdec.kernels.gpu.products import Norm, computes_alike
from fairseq_aggdec.kernels.gpu.products import product as fused_product
from fairseq_aggdec.windows.grid import WORD, GridTree, GridWindow, Sight
from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.window import Window

# What the fused kernel knows (source/attention.cu): numbers of a head.
WIDEST = 128
TRIED = dict(
    zip(PRECISIONS, (40, 64, 128), strict=True)
)  # of those with which a precision is tried
SPAN = 70  # with which windows are tried
TILE, TOGETHER = 4, 2  # slots of a block of `attend_slots`, of `cross_attend`
# Up to here every slot has a block: a GPU runs all of them at once. A slot gets the same numbers either way.
FEW_BLOCKS = 512
# Slots times keys from which on tensor cores, which PyTorch's attention uses, save more than its launches cost.
MOST_SCORES = 2**17


def attend_by_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention in which equal queries over equal keys give equal bits at any place of the window.

    ``scaled_dot_product_attention`` does not promise that on a CPU: MKL's sums depend on a query's place. Here every
    query is reduced by itself, in fp32, over all L keys; L has to be the same in all calls that are compared.

    Args:
        q: (B, H, W, D).
        k, v: (B, H, L, D).
        mask: additive, (B or 1, 1, W or 1, L); None: every key is visible.

    Returns:
        (B, H, W, D) in the dtype of ``q``.
    """
    keys, values, scale = k.float(), v.float(), q.size(-1) ** -0.5
    out = torch.empty_like(q)
    for slot in range(q.size(2)):
        scores = (keys * q[:, :, slot : slot + 1].float()).sum(-1) * scale  # (B, H, L)
        if mask is not None:
            scores += mask[:, :, min(slot, mask.size(2) - 1)]
            # A slot that nobody reads may see nothing; its values must stay numbers all the same.
            scores.masked_fill_(scores.isneginf(), torch.finfo(scores.dtype).min)
        out[:, :, slot] = (scores.softmax(-1).unsqueeze(-1) * values).sum(2)
    return out


def attend_alone(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention in which the result of a query depends on that query and its visible keys only; slow.

    PyTorch's own attention chooses its products by the number of queries and keys, so it rounds by them.

    Args:
        q: (B, H, W, D) fp32.
        k, v: (B, H, L, D).
        mask: additive, (B or 1, 1, W or 1, L); None: every key is visible.

    Returns:
        (B, H, W, D)
    """
    out = torch.empty_like(q)
    for row in range(q.size(0)):
        for slot in range(q.size(2)):
            keys, values = k[row], v[row]  # (H, L, D)
            if mask is not None:
                of_row = mask[row if mask.size(0) > 1 else 0, 0]
                seen = of_row[slot if of_row.size(0) > 1 else 0] > -torch.inf
                keys, values = keys[:, seen], values[:, seen]
            keys, values = keys.contiguous(), values.contiguous()
            scores = (keys * q[row, :, slot].unsqueeze(1)).sum(-1) * q.size(-1) ** -0.5  # (H, L)
            weights = scores.softmax(-1).unsqueeze(-1)
            out[row, :, slot] = (weights * values).sum(1)
    return out


def reads_heads(size: int) -> bool:
    """Tells whether the fused kernel knows heads of D numbers."""
    return size % 8 == 0 and size <= WIDEST


def fused(window: Window, keys: int, like: Tensor, size: int) -> bool:
    """Tells whether the fused kernel attends, on a GPU.

    Args:
        window: whose slots attend.
        keys: places of each row.
        like: has the device and the dtype.
        size: D.
    """
    known = isinstance(window, GridWindow) and like.dtype in PRECISIONS
    if not known or not reads_heads(size):
        return False
    few = window.width == 1 or window.rows * window.width * keys <= MOST_SCORES
    few = few and 3 * keys * like.size(-1) <= LARGEST  # numbers of a row, which the kernel counts
    return few and usable(like.device, attends_alike, like.dtype)


def attend_own(
    qkv: Tensor, cache: Tensor, width: int, heads: int, sight: Sight, few: int = FEW_BLOCKS
) -> Tensor:
    """Stores the keys and values of a window and attends, in one launch.

    Args:
        qkv: (R W, 3C), queries, keys and values of R rows of W slots.
        cache: (R, L, 2C), written in place.
        width: W.
        heads: H.
        sight: what each slot sees of the L places.
        few: each slot has a block of its own if there are at most this many blocks.

    Returns:
        (R W, C)
    """
    out = qkv.new_empty(qkv.size(0), qkv.size(1) // 3)
    steps = cache.stride(0), cache.stride(1), out.size(1)
    _launch(qkv, cache, (cache.size(1), *steps), (width, heads), sight, out, few)
    return out


def attend_source(
    q: Tensor, memory: Tensor, mask: Tensor | None, width: int, few: int = FEW_BLOCKS
) -> Tensor:
    """Queries (R W, C) over keys and values (2, R, H, S, D) of sources, mask (R or 1, 1, 1, S) -> (R W, C)."""
    out = torch.empty_like(q)
    _, _, heads, keys, _ = memory.shape
    steps = memory.stride(1), memory.stride(3), memory.stride(0)
    _launch(q, memory, (keys, *steps), (width, heads), Sight(mask=mask), out, few)
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
    _launch(qkv, qkv[:, channels:], keys, (length, heads), Sight(mask=mask), out, FEW_BLOCKS)
    return out


def _launch(
    queries: Tensor,
    kept: Tensor,
    keys: tuple[int, int, int, int],
    shape: tuple[int, int],
    sight: Sight,
    out: Tensor,
    few: int,
) -> None:
    """Attention of slots.

    Args:
        queries: (R W, C or more).
        kept: keys and values.
        keys: how many there are, steps from a row's to the next row's, to the next key, to a key's value.
        shape: W and H.
        sight: what each slot sees.
        out: (R W, C), written.
    """
    (slots, channels), (width, heads), (at, last, bits, mask, span) = out.shape, shape, sight
    of_mask = [0, 0]
    if mask is not None:
        mask = mask.to(out.dtype)  # in an ensemble it may be in the precision of another model
        of_mask = [mask.stride(dim) if mask.size(dim) > 1 else 0 for dim in (0, 2)]
    blocks, name = slots * heads, "attend"
    if width > 1 and blocks > few:
        blocks, name = slots // width * heads * -(-width // TILE), "attend_slots"
    size = channels // heads
    getattr(operators(), name)(
        *(blocks, PRECISIONS[out.dtype], width, heads, size, keys[0], queries.stride(0), *keys[1:]),
        *(*of_mask, 0 if bits is None else bits.size(1), -1 if span is None else span),
        *(size**-0.5, queries, kept, at, last, bits, mask, out),
    )


@tries("attend", "attend_slots")
def attends_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernels give in a precision what PyTorch's attention gives, for windows of every kind."""
    heads, size = 2, TRIED[dtype]
    return all(
        alike(window, RandomAttention(window, dtype, heads, size), mask, sight, few)
        for (window, mask, sight), few in product(_windows(device, dtype), (0, FEW_BLOCKS))
    )


def _windows(
    device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[GridWindow, Tensor, Sight]]:
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
            yield window, window.mask(dtype), window.sight()
    # More keys than all threads read at once; each slot sees some of them, as in a beam, or only the nearest.
    places = 2 * first + used
    at, keys = places.flatten().to(device), 3 * WORD
    window = GridWindow(at, at, (*places.shape, keys))
    yield window, window.mask(dtype, SPAN), window.sight(SPAN)
    mask = window.mask(dtype).clone()
    chance = torch.Generator().manual_seed(7)
    hidden = torch.rand(mask.shape, generator=chance).to(device) < 0.5
    hidden.scatter_(3, at.view(len(first), 1, -1, 1), False)
    mask.masked_fill_(hidden, -torch.inf)
    yield window, mask, Sight(at, mask=mask)


class RandomAttention:
    """Random numbers that a window may attend to.

    Args:
        window: unused slots repeat the last of their row.
        dtype: of the numbers.
        heads, size: H and D.
        sources: S.
        seed: of the numbers.

    Attributes:
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
        self.heads, channels = heads, heads * size
        shape = rows, width + keys + sources, 3 * channels
        made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)
        slots = window.at.view(rows, width, 1) - window.at.view(rows, width, 1)[:, :1]
        self.qkv = made.gather(1, slots.expand(-1, -1, 3 * channels)).flatten(0, 1)
        self.cache, self.memory = made[:, width:, channels:].split([keys, sources], 1)
        padded = torch.arange(rows, device=device).unsqueeze(1) % sources
        padding = torch.arange(sources, device=device) < padded
        self.of_source = additive_mask(padding, dtype)


def alike(
    window: GridWindow, numbers: RandomAttention, mask: Tensor, sight: Sight, few: int = FEW_BLOCKS
) -> bool:
    """Tells whether both attentions agree, with garbage wherever no slot looks.

    Args:
        window, numbers: what attends to what.
        mask, sight: what its slots see, each its own place at least.
        few: as of :func:`attend_own`.
    """
    qkv, heads, of_source = numbers.qkv, numbers.heads, numbers.of_source
    queries, own = qkv.tensor_split([qkv.size(1) // 3], 1)
    plain, kept = (_hidden(numbers.cache, mask, fill) for fill in (0.0, torch.nan))
    memory, garbage = (_hidden(numbers.memory, of_source, fill) for fill in (0.0, torch.nan))
    plain[window.row_of, window.positions] = own
    given = _split(garbage, heads), of_source, window.width, few
    found = [attend_own(qkv, kept, window.width, heads, sight, few)]
    found += [attend_source(queries.contiguous(), *given)]
    grid = queries.float().view(window.rows, window.width, heads, -1).transpose(1, 2)
    for one, keys, hidden in zip(found, (plain, memory), (mask, of_source), strict=True):
        k, v = _split(keys, heads).float().unbind(0)
        wanted = F.scaled_dot_product_attention(grid, k, v, hidden.float())
        most = max(4 * torch.finfo(one.dtype).eps, 2e-3)
        if not (one.float() - wanted.transpose(1, 2).reshape(one.shape)).abs().amax() <= most:
            return False
    return torch.equal(_hidden(kept, mask, 0.0), plain)


def _split(kv: Tensor, heads: int) -> Tensor:
    """Keys and values (R, L, 2C) -> (2, R, H, L, D), a view."""
    return kv.unflatten(2, (2, heads, -1)).permute(2, 0, 3, 1, 4)


def _hidden(kv: Tensor, mask: Tensor, fill: float) -> Tensor:
    """Keys and values (R, L, 2C) with ``fill`` where a mask (R, 1, W or 1, L) hides them from all slots."""
    return kv.masked_fill((mask == -torch.inf).all(2).transpose(1, 2), fill)


def crosses(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernel runs: it and those whose work it does."""
    probes = computes_alike, attends_alike, crosses_alike
    return all(usable(device, agree, dtype) for agree in probes)


def cross_attend(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Norm,
    memory: Tensor,
    mask: Tensor | None,
    width: int,
    kept: Tensor | None = None,
) -> Tensor:
    """Attention of the queries ``norm(x) W^T + b``.

    Args:
        x: (R W, C).
        weight, bias: W as (C, C), transposed in memory; b (C,), None: nothing is added.
        norm: of C channels.
        memory: keys and values (2, R, H, S, D) of sources.
        mask: additive, (R or 1, 1, 1, S); None: nothing is hidden.
        width: W, slots of a row.
        kept: (R W, C), where ``norm(x)`` is written; None: nowhere.

    Returns:
        (R W, C)
    """
    (slots, channels), (_, _, heads, keys, size) = x.shape, memory.shape
    out, of_mask = torch.empty_like(x), 0
    if mask is not None:
        mask = mask.to(x.dtype)  # in an ensemble it may be in the precision of another model
        of_mask = mask.stride(0) if mask.size(0) > 1 else 0
    blocks = heads * -(-slots // TOGETHER)
    steps = memory.stride(1), memory.stride(3), memory.stride(0)
    operators().cross_attend(
        *(blocks, PRECISIONS[x.dtype], slots, heads, size, width, keys, *steps, of_mask),
        *(norm.eps, 1 / channels, size**-0.5, x, weight.t(), bias, *norm[:2], memory, mask),
        *(kept, out),
    )
    return out


@tries("cross_attend")
def crosses_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernel gives in a precision what the two give in whose place it runs, bit for bit."""
    # One slot and slots of which a block has one alone; heads of one step and of several, inputs of every chunk.
    sizes = (1, 1, 2, 40), (3, 3, 8, 64), (1, 2, 3, 128)
    return all(cross_alike(dtype, device, *size, sources=9 + 60 * (size[0] > 1)) for size in sizes)


def cross_alike(
    dtype: torch.dtype,
    device: torch.device,
    rows: int,
    width: int,
    heads: int,
    size: int,
    sources: int = 9,
    biased: bool = True,
    seed: int = 7,
) -> bool:
    """Tells whether the kernel gives for random numbers what the products of few rows and :func:`attend_source` give.

    Args:
        dtype, device: of the numbers.
        rows, width, heads, size, sources: R, W, H, D, S.
        biased: the product has a bias.
        seed: of the numbers.
    """
    at = torch.arange(width, device=device).repeat(rows)
    window, channels = GridWindow(at, at, (rows, width, WORD)), heads * size
    numbers = RandomAttention(window, dtype, heads, size, sources, seed)
    x, memory = numbers.qkv[:, :channels].contiguous(), _split(numbers.memory, heads)
    own = torch.Generator().manual_seed(seed)
    made = torch.randn(channels + 3, channels, generator=own).to(device, dtype)
    weight, bias = made[3:].div(channels**0.5).t(), made[0] if biased else None
    norm, kept = Norm(made[1], made[2], 1e-5), [torch.empty_like(x) for _ in range(2)]
    given = memory, numbers.of_source, width
    found = cross_attend(x, weight, bias, norm, *given, kept[0])
    queries = fused_product(x, weight, bias, norm=norm, kept=kept[1])
    return torch.equal(kept[0], kept[1]) and torch.equal(found, attend_source(queries, *given))
