"""Tables of the best tokens in log-probabilities, as tests compare them with numbers found otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fairseq_aggdec.search.compiled.tables import TableRequest, changes_of, tables_of


def best_tokens(
    logits: Tensor,
    count: int,
    wanted: Tensor,
    pad: int,
    unk: int,
    unk_penalty: float = 0.0,
    banned: Sequence[tuple[int, int]] = (),
    tables: Callable[[Tensor, TableRequest], tuple[Tensor, Tensor]] = tables_of,
) -> Tensor:
    """The ``count`` likeliest tokens of each row, and one more.

    Returns:
        (N, 2 * ``count`` + 1) fp32, best first: log-probabilities in nats, tokens as numbers, and the log-probability
        of ``wanted`` (N,), which may be banned. NaN where the logits (N, V) hold NaN.
    """
    triples = [(place, token, -torch.inf) for place, token in banned]
    triples += [(place, unk, -unk_penalty) for place in range(len(logits)) if unk_penalty]
    triples.sort(key=lambda triple: triple[0])
    pairs = torch.stack([torch.arange(len(logits)), wanted.cpu()], 1)
    found, needed = tables(logits, TableRequest(count, pad, changes_of(triples), pairs))
    values, tokens, _, largest, log_sum = found.split([count, count, 1, 1, 1], 1)
    needed = torch.where(wanted.cpu() == unk, needed - unk_penalty, needed).unsqueeze(1)
    return torch.cat([values - largest - log_sum, tokens, needed - largest - log_sum], 1)
