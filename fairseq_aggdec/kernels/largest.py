"""The largest logit of each row: what greedy decoding, verification and drafting all ask for."""

import functools

import torch
from torch import Tensor

from fairseq_aggdec.kernels.library import kernels, reads

# PyTorch finds the largest value on a CPU eight numbers at a time, its index one by one. So with many numbers the
# largest of each run is found first, then one run per row is searched. With few numbers that takes longer.
RUN = 128
FEWEST_RUNS = 8
MANY_BYTES = 2**17


def first_largest(x: Tensor) -> Tensor:
    """(N, V) -> (N,) int64: where each row is largest, the first place of several; NaN counts as the largest.

    Equals ``x.max(-1).indices``, which takes up to six times as long on a CPU.
    """
    if reads(x) and (library := kernels()) is not None:
        places = x.new_empty(x.size(0), dtype=torch.int64)
        library.aggdec_largest(x.data_ptr(), *x.shape, places.data_ptr())
        return places
    if x.device.type != "cpu" or x.nbytes < MANY_BYTES or x.size(1) < FEWEST_RUNS * RUN:
        return x.max(-1).indices  # twice as fast as argmax on CPU
    size = x.size(1)
    runs = x[:, : size // RUN * RUN].unflatten(1, (-1, RUN)).amax(-1)  # (N, V // RUN)
    if size % RUN:
        # The last run begins in the one before it, behind which it counts.
        runs = torch.cat([runs, x[:, size - RUN :].amax(-1, keepdim=True)], 1)
    start = runs.max(-1, keepdim=True).indices.mul_(RUN).clamp_(max=size - RUN)  # (N, 1)
    return x.gather(1, start + _within()).max(-1).indices.add_(start.squeeze(1))


@functools.cache
def _within() -> Tensor:
    return torch.arange(RUN)
