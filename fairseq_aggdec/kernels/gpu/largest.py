"""The largest logits of each row: what greedy decoding, verification, drafting and beam search all ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu
from fairseq_aggdec.kernels.library import kernels, reads

# What the kernels know: tokens of a row, and those of all its parts.
MOST_KEPT, MOST_KEYS = 32, 512
# Of `candidates`: rows stand alone, nothing is forced, hidden or penalised.
NO_RULES = 1, 0, -1, -1, -1, 0.0, None, None, None


def first_largest(x: Tensor) -> Tensor:
    """(N, V) -> (N,) int64: where each row is largest, the first place of several; NaN counts as the largest.

    Equals ``x.max(-1).indices``, which takes up to six times as long on a CPU, and reads a row number by number on a
    GPU.
    """
    if reads(x) and (library := kernels()) is not None:
        places = x.new_empty(x.size(0), dtype=torch.int64)
        library.aggdec_largest(x.data_ptr(), *x.shape, places.data_ptr())
        return places
    if fused(x, finds_alike):
        return _first_largest(x)
    return x.max(-1).indices  # twice as fast as argmax on CPU


def _first_largest(x: Tensor) -> Tensor:
    places = x.new_empty(x.size(0), dtype=torch.int64)
    gpu.ops().largest(*x.shape, gpu.PRECISIONS[x.dtype], x, places)
    return places


def likeliest(x: Tensor, count: int) -> Tensor:
    """(N, V) -> (N, ``count``) int64: where each row is largest, the largest first."""
    if count <= MOST_KEPT and fused(x, ranks_alike):
        return candidates(x, count)[1]
    return x.topk(count).indices


def fused(x: Tensor, agree: gpu.Probe) -> bool:
    """Tells whether kernels of a GPU, which ``agree`` tries, find the largest numbers of each row."""
    known = x.dtype in gpu.PRECISIONS and x.is_contiguous() and x.numel() > 0
    return known and gpu.usable(x.device, agree)


class Leading(NamedTuple):
    """The likeliest of each of P parts of the logits (N, V).

    Attributes:
        parts, types, precision: P, V, and the precision of the logits as kernels know it.
        logits: (N, V).
        sums: (N, P, 2) fp32, what exponentials come to.
        keys: (N, P K) int64, tokens and their logits.
    """

    parts: int
    types: int
    precision: int
    logits: Tensor
    sums: Tensor
    keys: Tensor


def leading(logits: Tensor, kept: int, rules: tuple[Any, ...] = NO_RULES) -> Leading:
    """The likeliest tokens of parts of each row, in one launch; arguments as of :func:`candidates`."""
    count, types = logits.shape
    parts = min(gpu.parts(count, types, logits.device), MOST_KEYS // kept)
    sums = logits.new_empty(count, parts, 2, dtype=torch.float32)
    keys = logits.new_empty(count, parts * kept, dtype=torch.int64)
    leaders = Leading(parts, types, gpu.PRECISIONS[logits.dtype], logits, sums, keys)
    gpu.ops().leaders(count * parts, *_arguments(leaders, kept, rules))
    return leaders


def _arguments(
    leaders: Leading, kept: int, rules: tuple[Any, ...], *out: Tensor
) -> tuple[Any, ...]:
    """Arguments of the kernels; without ``out``, of which only the second knows, others stand in its place."""
    values, tokens, ends = out or (leaders.sums, leaders.keys, leaders.sums)
    return kept, *leaders[:3], *rules, *leaders[3:], values, tokens, ends


def candidates(
    logits: Tensor, kept: int, rules: tuple[Any, ...] = NO_RULES
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens of each row, in two launches; of equal logits the first.

    Args:
        logits: (N, V) in one of the ``PRECISIONS``, contiguous.
        kept: K, at most 32.
        rules: parameters of the kernel, ``width`` to ``forced``.

    Returns:
        log-probabilities (N, K) fp32 and tokens (N, K) int64, best first, and the log-probabilities of ``</s>`` (N,).
        They are NaN where a row holds a number that is none.
    """
    leaders, count = leading(logits, kept, rules), len(logits)
    values = logits.new_empty(count, kept, dtype=torch.float32)
    tokens, ends = leaders.keys.new_empty(count, kept), values.new_empty(count)
    gpu.ops().best(count, *_arguments(leaders, kept, rules, values, tokens, ends))
    return values, tokens, ends


# Rows and types with which kernels are tried: of several parts, and so many that threads read several groups.
SEVERAL_PARTS = 3, 2 * gpu.PART + 5
LONG_ROWS, MANY_ROWS = (12, 16 * 1024 + 5), (140, gpu.PART + 453)
# Tokens beyond 18 bits, as of a multilingual vocabulary.
MANY_TYPES = 1, 2**18 + 4101


def _made(device: torch.device, rows: int) -> Tensor:
    chance = torch.Generator().manual_seed(7)
    return torch.randn(rows, gpu.TYPES, generator=chance).to(device, torch.float16)


def _largest_twins(device: torch.device, rows: int) -> gpu.Twins:
    x = _made(device, rows)
    return gpu.Twins(lambda: _first_largest(x), lambda: x.max(-1).indices)


@gpu.tries("largest", twins=_largest_twins)
def finds_alike(device: torch.device) -> bool:
    """Tells whether the kernel finds what PyTorch's operators find, in every precision."""
    for x, likely in _logits(device, SEVERAL_PARTS, LONG_ROWS, MANY_TYPES):
        x[:, -1] = 9.0  # as large as the largest
        if not torch.equal(_first_largest(x).cpu(), likely[:, 0]):
            return False
    return True


def _best_twins(device: torch.device, rows: int) -> gpu.Twins:
    x = _made(device, rows)
    return gpu.Twins(lambda: candidates(x, 8), lambda: x.topk(8))


@gpu.tries("leaders", "best", twins=_best_twins)
def ranks_alike(device: torch.device) -> bool:
    """Tells whether the kernels rank as PyTorch's operators do, in every precision."""
    cases = _logits(device, SEVERAL_PARTS, MANY_ROWS, MANY_TYPES)
    return all(torch.equal(candidates(x, 8)[1].cpu(), likely) for x, likely in cases)


def _logits(device: torch.device, *shapes: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows that begin anywhere, in every precision, and their eight likeliest tokens."""
    chance = torch.Generator().manual_seed(7)
    for shape in shapes:
        x = torch.rand(shape, generator=chance)
        likely = torch.rand(shape, generator=chance).topk(8).indices
        if shape == MANY_TYPES:
            likely = torch.arange(shape[1] - 9, shape[1] - 1).unsqueeze(0)
        x = x.scatter_(1, likely, torch.arange(9.0, 1.0, -1.0).expand(len(x), 8))
        for dtype in gpu.PRECISIONS:
            yield x.to(device, dtype, copy=True), likely
