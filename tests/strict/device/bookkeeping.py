"""The kernels of a GPU compiled as C++, for tensors of a CPU: on the strict device they run in place of CUDA's."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fairseq_aggdec.kernels.gpu import nvrtc, operators

SOURCE = Path(__file__).with_suffix(".cpp")
CACHE = Path(__file__).parents[3] / ".cache" / "bookkeeping"
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")


def build(*flags: str) -> Path:
    """The library, compiled unless that was done with the same sources and flags."""
    stamp = hashlib.sha256(repr(flags).encode())
    for path in (SOURCE, nvrtc.SOURCE):
        stamp.update(path.read_bytes())
    library = CACHE / f"{stamp.hexdigest()[:16]}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CXX", "g++"), *FLAGS, *flags, f"-I{nvrtc.SOURCE.parent}"]
        subprocess.run([*command, str(SOURCE), "-o", str(made)], check=True)
        made.replace(library)  # other processes may build it too
    return library


@functools.cache
def _registered() -> torch.library.Library:
    """Makes the operators run on tensors of a CPU, each block of one thread."""
    operators.operators()
    compiled = ctypes.CDLL(str(build()))
    library = torch.library.Library(operators.NAMESPACE, "IMPL", "CPU")
    for name in operators.SCHEMAS:
        library.impl(name, functools.partial(run, compiled, name))
    return library


def run(compiled: Any, name: str, *arguments: Any, threads: int = 1) -> None:
    kernel = getattr(compiled, f"run_{name}")
    kernel.argtypes, kernel.restype = (ctypes.c_char_p, ctypes.c_longlong, ctypes.c_longlong), None
    kernel(operators.words(arguments), arguments[0], threads)


@contextmanager
def fused_kernels() -> Iterator[None]:
    """While this holds, the kernels are there on every device."""
    _registered()
    operators._tried.cache_clear()
    try:
        with mock.patch.object(operators, "ready", lambda device: True):
            yield
    finally:
        operators._tried.cache_clear()
