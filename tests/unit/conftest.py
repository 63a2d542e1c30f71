"""The kernels of a GPU, compiled as C++ for tensors of a CPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

from tests.strict.device.bookkeeping import COMPILER, fused_kernels


@pytest.fixture
def compiled_kernels() -> Iterator[None]:
    if shutil.which(COMPILER) is None:
        pytest.skip("no C++ compiler here")
    with fused_kernels(), torch.inference_mode():
        yield
