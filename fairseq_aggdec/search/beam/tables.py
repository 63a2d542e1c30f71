"""What beam search needs to know of the vocabulary, found on the device and brought to the host in one copy."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.kernels.library import kernels, reads
from fairseq_aggdec.windows.transfer import to_device

# Types in a run. The k largest numbers of a vocabulary are in the k runs with the largest maxima, so only these runs
# are searched. With fewer numbers than FEWEST_NUMBERS that takes longer than looking at all.
RUN = 64
FEWEST_NUMBERS = 2**16


def best_tokens(
    logits: Tensor,
    count: int,
    wanted: Tensor,
    pad: int,
    unk: int,
    unk_penalty: float = 0.0,
    banned: Sequence[tuple[int, int]] | None = None,
) -> Tensor:
    """The ``count`` likeliest tokens of each position and one more token, as stock scores them.

    Args:
        logits: (N, V) fp32.
        count: how many, at most V.
        wanted: (N,) int64, the token whose log-probability is needed in any case.
        pad, unk: symbols; padding has no chance.
        unk_penalty: subtracted from the log-probability of ``unk``, in nats.
        banned: (position, token) pairs that are not among the best; nothing is redistributed to the others. None: there
            can be none. Two calls round alike only if both have None or both a list, which may be empty.

    Returns:
        (N, 2 * ``count`` + 1) fp32, best first: log-probabilities in nats, tokens as numbers, and the log-probability
        of ``wanted``. NaN where the model gave NaN.
    """
    library = kernels() if reads(logits) and not unk_penalty and banned is None else None
    if library is not None:
        wanted = wanted.contiguous()
        table = logits.new_empty(logits.size(0), 2 * count + 1)
        library.aggdec_best_tokens(
            *(logits.data_ptr(), *logits.shape, count, wanted.data_ptr(), pad),
            *(table.data_ptr(), torch.get_num_threads()),
        )
        return table
    log_probs = logits.log_softmax(-1)
    log_probs[:, pad] = -torch.inf
    if unk_penalty:
        log_probs[:, unk] -= unk_penalty
    needed = log_probs.gather(1, wanted.unsqueeze(1))  # (N, 1)
    if banned:
        log_probs[to_device(banned, logits.device).unbind(1)] = -torch.inf
    values, tokens = largest(log_probs, count)
    return torch.cat([values, tokens.to(values.dtype), needed], 1)


def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``x.topk(count)`` of (N, V), which on CPU takes several times as long for many numbers."""
    rows, types = x.shape
    whole = types // RUN
    if x.device.type != "cpu" or x.numel() < FEWEST_NUMBERS or whole < 2 * count:
        return x.topk(count)
    runs = x[:, : whole * RUN].unflatten(1, (whole, RUN))  # (N, V // RUN, RUN)
    best = runs.amax(2).topk(count, sorted=False).indices  # (N, count)
    numbers = runs.gather(1, best.unsqueeze(2).expand(-1, -1, RUN)).flatten(1)
    tokens = (best.unsqueeze(2) * RUN + _within()).flatten(1)  # (N, count * RUN)
    if types % RUN:
        rest = torch.arange(whole * RUN, types)
        numbers = torch.cat([numbers, x[:, whole * RUN :]], 1)
        tokens = torch.cat([tokens, rest.expand(rows, -1)], 1)
    values, found = numbers.topk(count)
    return values, tokens.gather(1, found)


@functools.cache
def _within() -> Tensor:
    return torch.arange(RUN)
