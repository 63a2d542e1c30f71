"""Attention: its kernels on a GPU, masks that they read without a copy, and a form without library sums on a CPU."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

# PyTorch's own order but for cuDNN, which it prefers on Hopper in half precision: that prepares a plan for every shape,
# and the keys of a window are one more in every step.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

# A fused kernel reads masks whose rows begin at multiples of so many numbers; others it is given a copy of, in every
# layer.
ALIGNMENT = 8

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def with_kernels(
    device: torch.device,
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function whose attention runs on a device, with the kernels that suit windows there."""
    chosen: Any = sdpa_kernel(KERNELS) if device.type == "cuda" else nullcontext()
    with chosen:
        return function(*args, **kwargs)


def aligned(columns: int) -> int:
    """So many numbers per row of a mask of that many columns."""
    return -(-columns // ALIGNMENT) * ALIGNMENT


def mask_of_rows(mask: Tensor, rows: Tensor) -> Tensor:
    """Rows (R,) of a mask (B, 1, 1, L), laid out as the mask is."""
    columns = mask.size(-1)
    chosen = mask.new_empty(len(rows), 1, 1, aligned(columns))[..., :columns]
    return chosen.copy_(mask.index_select(0, rows))


def attend_by_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention in which equal queries over equal keys give equal bits, wherever they stand in the window.

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
        out[:, :, slot] = (scores.softmax(-1).unsqueeze(-1) * values).sum(2)
    return out


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, W, L) or (B, L) bool, what is not seen -> (B, 1, W or 1, L), -inf there and 0 elsewhere."""
    rows, columns = hidden.size(0), hidden.size(-1)
    shape = rows, 1, hidden.numel() // max(1, rows * columns), aligned(columns)
    mask = torch.zeros(shape, dtype=dtype, device=hidden.device)[..., :columns]
    return mask.masked_fill_(hidden.view(mask.shape), -torch.inf)
