"""CUDA graphs: what a function asks of a GPU is captured once, and asked again in one launch.

A graph reads and writes the memory that it was captured with. So all that changes between two replays is in tensors
that stay where they are. Nothing in the function may look at a number of the device or depend on one of the host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.engine.graphs.streams import side_stream


@dataclass
class Made:
    """What was captured in this process, for the log."""

    graphs: int = 0
    bytes: int = 0

    def summary(self) -> str:
        return f"{self.graphs} captured ({self.bytes / 2**20:.0f} MiB), --no-graphs does without"


made = Made()


class Captured:
    """A function of no arguments over tensors that stay where they are.

    Args:
        function: is called twice, the first time so that libraries set up what they need.
        device: a GPU.
        pool: memory of graphs of which no two run at the same time; what one gives is to be read before the next runs.
    """

    def __init__(self, function: Callable[[], Tensor], device: torch.device, pool: Any):
        main, side = torch.cuda.current_stream(device), side_stream(device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            function()
        main.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        # Other threads may go on with what is theirs (reading data) meanwhile.
        with torch.cuda.graph(
            self.graph, pool=pool, stream=side, capture_error_mode="thread_local"
        ):
            before = torch.cuda.memory_reserved(device)
            self.result = function()
            made.bytes += torch.cuda.memory_reserved(device) - before
        made.graphs += 1

    def replay(self) -> Tensor:
        """What the function gives now: the same tensor every time, with other numbers."""
        self.graph.replay()
        return self.result
