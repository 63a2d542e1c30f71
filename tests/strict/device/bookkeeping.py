"""The kernels of a GPU compiled as C++, for tensors of a CPU: on the strict device they run in place of CUDA's."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fairseq_aggdec.kernels.gpu import launching, nvrtc, operators

SOURCE = Path(__file__).with_suffix(".cpp")
CACHE = Path(__file__).parents[3] / ".cache" / "bookkeeping"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = [
    "-std=c++17",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-shared",
    "-fPIC",
]
if "libasan" in os.environ.get("LD_PRELOAD", ""):  # scripts/test.sh sanitizers
    FLAGS += ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def build() -> Path:
    """The library, compiled unless that was done with the same sources and flags."""
    stamp = hashlib.sha256(repr(FLAGS).encode())
    for path in (SOURCE, *sorted(nvrtc.SOURCES.iterdir())):
        stamp.update(path.read_bytes())
    library = CACHE / f"{stamp.hexdigest()[:16]}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}")
        command = [COMPILER, *FLAGS, f"-I{nvrtc.SOURCES}", str(SOURCE), "-o", str(made)]
        subprocess.run(command, check=True, env=PLAIN)
        made.replace(library)  # other processes may build it too
    return library


@functools.cache
def _compiled() -> Any:
    return ctypes.CDLL(str(build()))


Form = Callable[..., None]  # runs a kernel, by its name and its arguments
_forms: list[Form] = []  # the last one runs


@functools.cache
def _registered() -> torch.library.Library:
    """Makes the operators run on tensors of a CPU."""
    operators.operators()
    library = torch.library.Library(operators.NAMESPACE, "IMPL", "CPU")
    for name in operators.SCHEMAS:
        library.impl(name, functools.partial(lambda own, *given: _forms[-1](own, *given), name))
    return library


def in_one_thread(name: str, *arguments: Any) -> None:
    """Runs a kernel, each block as one thread."""
    kernel = getattr(_compiled(), f"run_{name}")
    kernel.argtypes, kernel.restype = (ctypes.c_char_p, ctypes.c_longlong), None
    signature = operators.SIGNATURES[name]
    given = signature.read(arguments)
    kernel(signature.words(given), given[0])


@contextmanager
def fused_kernels(form: Form = in_one_thread) -> Iterator[None]:
    """While this holds, the kernels are there on every device, in a form; without a C++ compiler they are not."""
    there = shutil.which(COMPILER) is not None
    if there:
        _registered()
    _forms.append(form)
    operators.try_again(everything=True)
    try:
        with (
            mock.patch.object(operators, "ready", lambda device: there),
            # The strict device counts captures, and lets them fail.
            mock.patch.object(
                launching, "lacking", lambda device: None if device.type == "cpu" else "a stand-in"
            ),
        ):
            yield
    finally:
        _forms.pop()
        operators.try_again(everything=True)
