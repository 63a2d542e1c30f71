"""Tables that beam search needs to know of the vocabulary, found on the device and brought to the host in one copy."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.kernels.library import kernels, reads
from fairseq_aggdec.windows.transfer import to_device


def best_tokens(
    logits: Tensor,
    count: int,
    wanted: Tensor,
    pad: int,
    unk: int,
    unk_penalty: float = 0.0,
    banned: Sequence[tuple[int, int]] = (),
) -> Tensor:
    """The ``count`` likeliest tokens of each position and one more token, as stock scores them.

    Args:
        logits: (N, V) fp32.
        count: how many, at most V.
        wanted: (N,) int64, the token whose log-probability is needed in any case.
        pad, unk: symbols; padding has no chance.
        unk_penalty: subtracted from the log-probability of ``unk``, in nats.
        banned: (position, token) pairs that are not among the best; nothing is redistributed to the others.

    Returns:
        (N, 2 * ``count`` + 1) fp32, best first: log-probabilities in nats, tokens as numbers, and the log-probability
        of ``wanted``. NaN where the model gave NaN.
    """
    library = kernels() if reads(logits) else None
    if library is None:
        return by_operators(logits, count, wanted, pad, unk, unk_penalty, banned)
    if unk_penalty or banned:
        logits = logits.clone()
    wanted = wanted.contiguous()
    pairs = torch.tensor(sorted(banned), dtype=torch.int64)
    table = logits.new_empty(logits.size(0), 2 * count + 1)
    library.aggdec_best_tokens(
        *(logits.data_ptr(), *logits.shape, count, wanted.data_ptr(), pad, unk, unk_penalty),
        *(pairs.data_ptr(), len(banned), table.data_ptr(), torch.get_num_threads()),
    )
    return table


def by_operators(
    logits: Tensor,
    count: int,
    wanted: Tensor,
    pad: int,
    unk: int,
    unk_penalty: float = 0.0,
    banned: Sequence[tuple[int, int]] = (),
) -> Tensor:
    """:func:`best_tokens` on any device."""
    log_probs = logits.log_softmax(-1)
    log_probs[:, pad] = -torch.inf
    if unk_penalty:
        log_probs[:, unk] -= unk_penalty
    needed = log_probs.gather(1, wanted.unsqueeze(1))  # (N, 1)
    if banned:
        log_probs[to_device(banned, logits.device).unbind(1)] = -torch.inf
    values, tokens = log_probs.topk(count)
    return torch.cat([values, tokens.to(values.dtype), needed], 1)
