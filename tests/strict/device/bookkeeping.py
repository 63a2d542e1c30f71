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

from fairseq_aggdec.kernels.gpu import launching, nvrtc, operators, proof

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


PROCESSORS = 132  # of an H100
Form = Callable[..., None]  # runs a kernel, by its name and its arguments
_forms: list[Form] = []  # the last one runs


@functools.cache
def _registered() -> torch.library.Library:
    """Makes the operators run on tensors of a CPU."""
    operators.ops()
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


def proven(*_: Any) -> None:
    """Every kernel has a proof."""


def unproven(*_: Any) -> str:
    """No kernel has one."""
    return proof.UNTRIED


@contextmanager
def fused_kernels(
    form: Form = in_one_thread, proofs: Callable[..., str | None] = proven
) -> Iterator[None]:
    """While this holds, the kernels are there on every device, in a form; without a C++ compiler they are not.

    ``proofs``: why a kernel has no proof, in place of :func:`fairseq_aggdec.kernels.gpu.proof.against`.
    """
    there = shutil.which(COMPILER) is not None
    if there:
        _registered()
    _forms.append(form)
    operators.forget()
    try:
        with (
            mock.patch.object(operators, "lacking", lambda _: None if there else "no compiler"),
            mock.patch.object(operators, "unloaded", lambda *_: None),
            mock.patch.object(operators, "processors", lambda _: PROCESSORS),
            mock.patch.object(proof, "against", proofs),
            # The strict device counts captures, and lets them fail.
            mock.patch.object(
                launching, "lacking", lambda device: None if device.type == "cpu" else "a stand-in"
            ),
        ):
            yield
    finally:
        _forms.pop()
        operators.forget()
