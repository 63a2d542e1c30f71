"""Work that a GPU does beside other work: a drafter reads the source while the verifier does."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Beside:
    """What runs under :meth:`work` need not wait for what the current stream was given since this was made.

    What comes later waits for both. On a CPU everything runs in turn.

    Args:
        device: where the work is done; what it reads is on its way there already.
    """

    def __init__(self, device: torch.device):
        self.device = device
        if device.type == "cuda":
            self.ready = torch.cuda.current_stream(device).record_event()

    @contextmanager
    def work(self) -> Iterator[None]:
        if self.device.type != "cuda":
            yield
            return
        main, side = torch.cuda.current_stream(self.device), side_stream(self.device)
        # Blocks of the side stream's memory that the main stream has read were freed before `ready`: from here on the
        # side stream may write to them.
        side.wait_event(self.ready)
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            main.wait_stream(side)


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
