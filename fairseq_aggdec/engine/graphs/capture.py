"""CUDA graphs: what a function asks of a GPU is captured once, and asked again in one launch.

A graph reads and writes the memory that it was captured with. So all that changes between two replays is in tensors
that stay where they are. Nothing in the function may look at a number of the device or depend on one of the host.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.engine.graphs.streams import capture_purpose, side_stream
from fairseq_aggdec.kernels.gpu.dependent import dependent_launches

logger = logging.getLogger(__name__)

CAPTURED_AT = 2  # how often a size has come when it is captured

# PyTorch notes the state of its random numbers with each capture: two at a time would mix them up.
_one_capture = threading.Lock()


@dataclass
class Made:
    """Record of what was captured in this process, for the log."""

    graphs: int = 0
    bytes: int = 0
    failed: int = 0

    def summary(self) -> str:
        failed = f", {self.failed} could not be captured" if self.failed else ""
        size = self.bytes / 2**20
        return f"{self.graphs} captured ({size:.0f} MiB){failed}, --no-graphs does without"


made = Made()


class Captured:
    """A function of no arguments over tensors that stay where they are.

    A capture that fails changes no output: the function is then called at every replay, on the current stream.

    Args:
        function: is called twice, the first time so that libraries set up what they need.
        device: a GPU.
        pool: memory of graphs of which no two run at the same time; what one gives is to be read before the next runs.

    Attributes:
        graph: None where the capture failed.
    """

    def __init__(self, function: Callable[[], Tensor], device: torch.device, pool: Any):
        self.function, self.device, self.pool = function, device, pool
        self.graph: torch.cuda.CUDAGraph | None = None
        main = torch.cuda.current_stream(device)
        side = side_stream(device, capture_purpose(device))
        with _one_capture:
            side.wait_stream(main)
            try:
                # The outermost context: whatever fails inside, the current stream is the main one afterwards.
                with torch.cuda.stream(side):
                    function()
                    with dependent_launches(device):
                        self._capture()
            finally:
                main.wait_stream(side)

    def _capture(self) -> None:
        """Captures on the current stream. ``torch.cuda.graph`` would first empty the caches of the host program."""
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(self.device)
        try:
            # Other threads may go on with what is theirs (reading data, training) meanwhile.
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                self.result = self.function()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            made.failed += 1
            logger.warning("a step runs without a captured graph, only slower: %s", error)
            _close(self.pool, self.device)
            return
        self.graph = graph
        made.bytes += torch.cuda.memory_reserved(self.device) - before
        made.graphs += 1

    def replay(self) -> Tensor:
        """Runs the function anew: of a graph the same tensor every time, with other numbers."""
        if self.graph is None:
            return self.function()
        self.graph.replay()
        return self.result


class CapturedSizes:
    """The graphs of functions that share a pool of memory, one for each size.

    A size that comes for the first time runs as it is, because a size that comes once would cost more than it saves.
    From the second time on it is a graph. Both give the same bits.

    Attributes:
        captured: the graphs, by size.
    """

    def __init__(self) -> None:
        self.requests: Counter[Hashable] = Counter()
        self.forget()

    def forget(self) -> None:
        """Drops all graphs, because memory that they read is given up, and their pool: PyTorch does not open an empty
        pool again."""
        self.captured: dict[Hashable, Captured] = {}
        self.pool: object = None

    def drop(self, sizes: Iterable[Hashable]) -> None:
        """Drops the graphs of some sizes."""
        for size in sizes:
            self.captured.pop(size, None)

    def run(self, size: Hashable, function: Callable[[], Tensor], device: torch.device) -> Tensor:
        """Gives what a function gives, which may be called twice."""
        graph, _ = self._graph(size, function, device)
        return function() if graph is None else graph.replay()

    def advance(self, size: Hashable, function: Callable[[], Tensor], device: torch.device) -> bool:
        """Runs a function that goes on from what it has written, once; returns whether it was captured now."""
        graph, new = self._graph(size, function, device)
        if graph is None:
            function()
        elif not new:  # to capture it was to run it
            graph.replay()
        return new

    def _graph(
        self, size: Hashable, function: Callable[[], Tensor], device: torch.device
    ) -> tuple[Captured | None, bool]:
        """The graph of a size, None where there is none yet, and whether it is new."""
        self.requests[size] += 1
        new = size not in self.captured
        if new and self.requests[size] >= CAPTURED_AT:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            self.captured[size] = Captured(function, device, self.pool)
        graph = self.captured.get(size)
        return graph, new and graph is not None


def _close(pool: Any, device: torch.device) -> None:
    """Tells PyTorch's allocator that a capture has ended: one that failed may have left its pool open."""
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is not None:
        # It was closed already, or this version of PyTorch takes other arguments.
        with suppress(RuntimeError, TypeError):
            end(device.index, pool)
