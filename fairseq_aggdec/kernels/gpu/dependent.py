"""Tells whether kernels may begin before those before them have ended (:mod:`launching`), and tries it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import launching, operators
from fairseq_aggdec.kernels.gpu.attention import attend_own
from fairseq_aggdec.kernels.gpu.logits import logits
from fairseq_aggdec.kernels.gpu.operators import Twins
from fairseq_aggdec.kernels.gpu.products import Norm, normed, product
from fairseq_aggdec.kernels.switches import DEPENDENT
from fairseq_aggdec.windows.grid import GridWindow

# Of a chain: layers, channels, heads, keys of a row, types of the vocabulary. Small kernels overlap most.
LINKS, CHANNELS, HEADS, KEYS, TYPES = 4, 128, 2, 64, 512
LAUNCHES = 5 * LINKS + 1  # of a chain
REPLAYS = 10


class Chain:
    """Layers of a small decoder, in which each kernel reads what the one before has written: product, norm, attention,
    product, and behind them logits.

    Args:
        device: a GPU.
        dtype: of the numbers.
        rows: R, of one slot each.

    Attributes:
        cache: (LINKS, R, KEYS, 2C), written in place.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, rows: int):
        chance = torch.Generator().manual_seed(7)

        def made(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(shape, generator=chance).mul_(scale).to(device, dtype)

        self.device, small = device, CHANNELS**-0.5
        self.x = made(rows, CHANNELS)
        self.expand = made(LINKS, 3 * CHANNELS, CHANNELS, scale=small).transpose(1, 2)
        self.contract = made(LINKS, CHANNELS, CHANNELS, scale=small).transpose(1, 2)
        self.vocabulary = made(TYPES, CHANNELS, scale=small).t()
        gain, shift = made(2, CHANNELS).unbind(0)
        self.norm = Norm(gain, shift, 1e-5)
        self.cache = made(LINKS, rows, KEYS, 2 * CHANNELS)
        at = torch.arange(rows, device=device) % KEYS
        self.visibility = GridWindow(at, at, (rows, 1, KEYS)).visibility()

    def launch(self, early: bool) -> Tensor:
        """The layers one behind the other: logits (R, TYPES). In a capture kernels may begin early or not."""
        x = self.x
        with launching.overlapping(self.device, early):
            for expand, contract, cache in zip(self.expand, self.contract, self.cache, strict=True):
                x = normed(product(x, contract, None), self.norm)
                attended = attend_own(product(x, expand, None), cache, 1, HEADS, self.visibility)
                x = product(attended, contract, None, residual=x)
            return logits(x, self.vocabulary, None, self.norm)[0]


def captured(call: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """A call as one graph of the GPU: each call of the result runs it anew, and gives the same tensor."""
    if device.type == "cpu":  # of the tests, where a kernel has ended when its launch returns
        return call
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        call()  # kernels are compiled and loaded by then
        graph.capture_begin(torch.cuda.graph_pool_handle(), "thread_local")
        try:
            written = call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return written

    return replay


def _twins(device: torch.device, rows: int) -> Twins:
    chain = Chain(device, torch.float16, rows)
    return Twins(lambda: chain.launch(early=True), lambda: chain.launch(early=False))


@operators.tries(DEPENDENT, twins=_twins)
def begins_early(device: torch.device) -> bool | str:
    """Tells whether kernels that begin early give the bits that they give one behind the other, or what the device
    lacks for it."""
    if reason := launching.lacking(device):
        return reason
    return all(_same_bits(Chain(device, torch.float16, rows)) for rows in (1, 17))


def _same_bits(chain: Chain) -> bool:
    replay = captured(lambda: chain.launch(early=True), chain.device)
    chance = torch.Generator().manual_seed(8)
    for _ in range(REPLAYS):
        # Other numbers each time: those of the replay before would hide a kernel that reads too early.
        chain.x.copy_(torch.randn(chain.x.shape, generator=chance))
        wanted = chain.launch(early=False)
        if not torch.equal(replay().cpu(), wanted.cpu()):
            return False
    return True


def dependent_launches(device: torch.device) -> AbstractContextManager[None]:
    """Within this kernels of ours that are captured begin early, where that has a proof or is forced, and the device
    can do it."""
    allowed = operators.usable(device, begins_early) and launching.lacking(device) is None
    return launching.overlapping(device, allowed)
