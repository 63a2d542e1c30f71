"""The device on which this level decodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.strict.device.strict_device import DEVICE, strict_device


@pytest.fixture
def gpu(device: torch.device) -> Iterator[torch.device]:
    """The GPU of --device cuda, else the strict device."""
    if device.type == "cuda":
        yield torch.device("cuda", torch.cuda.current_device())
    else:
        with strict_device():
            yield DEVICE
