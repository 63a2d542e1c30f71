"""Kernels tried without a GPU: compiled as C++, some with faults, timed by counting launches."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.kernels.gpu.trying import Place
from tests.strict.device.bookkeeping import fused_kernels, in_one_thread

CRASH, HANG, WRONG, NO_COMPILER, SLOW = FAULTS = ("crash", "hang", "wrong", "compiler", "slow")
# What a launch of ours takes, one that is slow, and one of PyTorch's.
OWN, SLOWLY, OPERATOR = 1, 1000, 10
SMALL = {"CHANNELS": 64, "HEADS": 2, "TYPES": 512}  # of the model with which kernels are timed


class StandIn:
    """Where kernels are tried, as :func:`fairseq_aggdec.kernels.gpu.trying.try_kernels` takes it.

    Args:
        faults: of kernels, by their names.
    """

    def __init__(self, faults: Mapping[str, str]):
        self.faults = dict(faults)

    @contextmanager
    def __call__(self) -> Iterator[Place]:
        def milliseconds(call: Callable[[], object]) -> float:
            with Launches(self.faults) as counted:
                call()
            return float(counted.number)

        with fused_kernels(self.run), mock.patch.multiple(operators, **SMALL):
            yield Place(torch.device("cpu"), milliseconds)

    def run(self, name: str, *given: Any) -> None:
        """Runs a kernel, or its fault."""
        fault = self.faults.get(name)
        if fault == CRASH:
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == HANG:
            signal.pause()
        if fault == NO_COMPILER:
            raise RuntimeError(f"NVRTC: {name}.cu(1): error: it does not compile")
        in_one_thread(name, *given)
        if fault == WRONG:
            for place, (_, written) in enumerate(operators.SIGNATURES[name].parameters):
                if written and given[place] is not None:
                    given[place].add_(1)


class Launches(TorchDispatchMode):
    """Adds up what launches take."""

    def __init__(self, faults: Mapping[str, str]):
        super().__init__()
        self.faults, self.number = faults, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == operators.NAMESPACE:
            name = func._schema.name.split("::")[-1]
            self.number += SLOWLY if self.faults.get(name) == SLOW else OWN
        elif not func.__name__.startswith(("empty", "new_empty")):
            self.number += OPERATOR
        return func(*args, **(kwargs or {}))
