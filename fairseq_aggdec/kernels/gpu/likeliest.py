"""The tokens with the largest logits on a GPU, found as the candidates of a beam are."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import operators as gpu

MOST_KEYS = 512  # MOST_CANDIDATES of source/beam.cu
NONE, ANY = -1, 0  # a token that no rule changes, one whose log-probability nobody asks for


def likeliest(logits: Tensor, count: int) -> Tensor:
    """(N, V) -> (N, ``count``) int64, at most 32, the largest logit first, of equal ones the first; two launches."""
    rows, types = logits.shape
    parts = min(gpu.parts(rows, types), MOST_KEYS // count)
    sizes = 1, count, parts, types, 0, gpu.PRECISIONS[logits.dtype]
    values, ends, sums = (
        logits.new_empty(rows, size, dtype=torch.float32) for size in (count, 1, 2 * parts)
    )
    tokens, keys = (
        values.new_empty(rows, size, dtype=torch.long) for size in (count, parts * count)
    )
    # Where nothing is forced, clock, depths and forced tokens are not read.
    given = keys, keys, keys, logits.contiguous(), sums, keys, values, tokens, ends
    gpu.operators().leaders(rows * parts, *sizes, NONE, NONE, NONE, 0.0, *given)
    gpu.operators().best(rows, *sizes, ANY, NONE, ANY, 0.0, *given)
    return tokens
