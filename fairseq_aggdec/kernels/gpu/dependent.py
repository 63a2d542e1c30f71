"""Tells whether kernels may begin before those before them have ended (:mod:`launching`): tried once in a process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from fairseq_aggdec.kernels.gpu import launching, operators
from fairseq_aggdec.kernels.switches import DEPENDENT

ROWS, COLUMNS, LINKS = 160, 64, 16
POSITION, NUMBERS = 0, 7  # as in shared.h


class Chain:
    """Launches of which each reads what the one before has written: rows of a table change places.

    Args:
        device: a GPU.
        links: launches.

    Attributes:
        table: (ROWS, COLUMNS) int64. found: the same, what is there in the end.
    """

    def __init__(self, device: torch.device, links: int):
        self.device, self.links = device, links
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(7))
        self.table = table = torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS)
        for _ in range(links):
            table = table[order]
        self.expected, self.order = table, order.to(device)
        numbers = torch.zeros(ROWS, NUMBERS, dtype=torch.int64)
        numbers[:, POSITION] = COLUMNS - 1
        self.numbers, self.rooms = numbers.to(device), self.table.repeat(2, 1, 1).to(device)
        self.other = torch.zeros_like(self.rooms)
        self.masked = torch.zeros(ROWS, COLUMNS, dtype=torch.bool, device=device)
        self.last = self.order.clone()

    def launch(self) -> None:
        sizes = ROWS, COLUMNS, COLUMNS, 1, 0, 0, 0, 0
        none = self.last[:0]
        for link in range(self.links):
            table, to = self.rooms[link % 2], self.rooms[(link + 1) % 2]
            rest = to, *self.other.unbind(0), self.masked, none, self.last
            operators.operators().slots(*sizes, self.numbers, table, self.order, *rest)

    def captured(self, early: bool) -> Callable[[], None]:
        """The launches as one graph of the GPU, in which they begin early or not."""
        if self.device.type == "cpu":  # of the tests
            return self.launch
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        if not stream.cuda_stream:  # the default one, which cannot be captured
            stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream), launching.overlapping(self.device, early):
            self.launch()  # as it is: the kernel is compiled and loaded by then
            graph.capture_begin(torch.cuda.graph_pool_handle(), "thread_local")
            try:
                self.launch()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return graph.replay

    def right(self) -> bool:
        """Tells whether the rows are where they must be, after the launches."""
        return torch.equal(self.rooms[self.links % 2].cpu(), self.expected)


@operators.tries(DEPENDENT, "slots")
def begins_early(device: torch.device) -> bool | str:
    """Tells whether kernels that begin early do what they do one behind the other, or what the device lacks for it."""
    if reason := launching.lacking(device):
        return reason
    chain = Chain(device, LINKS)
    replay = chain.captured(early=True)
    for _ in range(3):
        chain.rooms.copy_(chain.table)
        replay()
        if not chain.right():
            return False
    return True


def dependent_launches(device: torch.device) -> AbstractContextManager[None]:
    """Within this kernels of ours that are captured begin early, where a device can do that and nobody has switched it
    off."""
    return launching.overlapping(device, operators.against(device, begins_early) is None)
