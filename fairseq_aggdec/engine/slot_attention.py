"""Attention on a CPU without a library's sums, which round by where a query stands."""

import torch
from torch import Tensor


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
