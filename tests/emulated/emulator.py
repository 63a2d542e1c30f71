"""The kernels as a GPU runs them, compiled by g++, with its blocks, warps and lanes: ``emulator.cpp``."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fairseq_aggdec.kernels.gpu import nvrtc, operators
from tests.emulated.pages import OnPages, Pages
from tests.strict.device.bookkeeping import COMPILER, PLAIN

MACHINE = Path(__file__).with_suffix(".cpp")
CACHE = Path(__file__).parents[2] / ".cache" / "emulated"
# The compiler's own checks of addresses and indices end in functions of the emulator.
FLAGS = [
    *("-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC"),
    *("-w", "-fsanitize=alignment,bounds"),
]
# Who runs first of blocks, warps and lanes. EARLY: at random, and a kernel begins before those before it have ended.
FORWARD, BACKWARD, RANDOM, EARLY = range(4)
ORDERS = FORWARD, BACKWARD, RANDOM, EARLY
FILES = sorted(set(operators.SOURCES.values()))
# A statement of PTX: its text, then operands, each behind a word of what it may be.
ASSEMBLER = re.compile(r"asm(?: volatile)?\s*\((.*?)\);", re.DOTALL)
# What stands beside each kernel.
RULE = re.compile(
    r'// Read before the wait: ([^\n.]*)\.\nextern "C" __global__ [^\n]* (\w+)\(const'
)
NOTHING: dict[str, tuple[str, str]] = {}
# File -> what stands there once, and what it becomes.
Changes = Mapping[str, tuple[str, str]]


def _call(statement: re.Match[str]) -> str:
    """A call of the emulator in place of a statement of PTX."""
    text = " ".join(statement[1].replace("\\\n", " ").split())
    said, _, operands = re.sub(r'"[=+]?\w"\s*\(', "(", text).partition(" : ")
    parts = re.split(r"[:,](?![^\[]*\])", operands)
    given = [part.strip() for part in parts if part.strip()]
    return f"gpu::ptx({', '.join(['__LINE__', said, *given])});"


def changed(changes: Changes) -> dict[str, str]:
    """The sources with some changes, by the names of their files."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in nvrtc.SOURCES.iterdir()}
    for name, (old, new) in changes.items():
        assert texts[name].count(old) == 1, (name, old, texts[name].count(old))
        texts[name] = texts[name].replace(old, new)
    return texts


def read_early(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Kernel -> parameters that it may read before it has waited for earlier kernels, as the sources say beside it."""
    found = {}
    for text in texts.values():
        for told, name in RULE.findall(text):
            found[name] = {word.strip() for word in told.split(",")} - {"nothing"}
    return found


def build(source: str, texts: Mapping[str, str]) -> Path:
    """The library of a source, compiled unless that was done with the same texts and flags."""
    parts = {name: texts[name] for name in nvrtc.files_of(source)}
    machine = MACHINE.read_text(encoding="utf-8")
    kernels = " ".join(f"RUN({name})" for name, of in operators.SOURCES.items() if of == source)
    stamp = hashlib.sha256(repr((FLAGS, machine, parts, kernels)).encode()).hexdigest()[:16]
    library = CACHE / f"{source}-{stamp}.so"
    if library.exists():
        return library
    made = CACHE / f"{source}-{stamp}-{os.getpid()}"
    made.mkdir(parents=True, exist_ok=True)
    for name, text in parts.items():
        (made / name).write_text(ASSEMBLER.sub(_call, text), encoding="utf-8")
    given = [f'-DSOURCE="{source}.cu"', f"-DKERNELS={kernels}", f"-I{made}"]
    for command in (
        [*FLAGS, *given, "-c", str(MACHINE), "-o", str(made / "part.o")],
        ["-shared", str(made / "part.o"), "-o", str(made / "whole.so")],
    ):
        subprocess.run([COMPILER, *command], check=True, env=PLAIN)
    (made / "whole.so").replace(library)  # other processes may build it too
    for path in [*made.iterdir()]:
        path.unlink()
    made.rmdir()
    return library


def build_all() -> None:
    """Compiles all sources side by side."""
    texts = changed(NOTHING)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda source: build(source, texts), FILES))


class Emulator:
    """Runs kernels, as :func:`tests.strict.device.bookkeeping.fused_kernels` takes it.

    Args:
        order: who runs first.
        seed: of the order that is random.
        changes: in the sources. A source is compiled when one of its kernels is first launched.

    Attributes:
        launches: how often each kernel was launched.
        readable: see :func:`read_early`.
    """

    def __init__(self, order: int = FORWARD, seed: int = 0, changes: Changes = NOTHING):
        self.order, self.seed, self.texts = order, seed, changed(changes)
        self.readable = read_early(self.texts)
        self.launches = dict.fromkeys(operators.SCHEMAS, 0)
        self.kernels: dict[str, Any] = {}

    def __call__(self, name: str, *arguments: Any) -> None:
        """Launches a kernel.

        Raises:
            RuntimeError: its threads wait for ever, meet at different places, or read what they must not.
        """
        self.launches[name] += 1
        signature = operators.SIGNATURES[name]
        given = signature.read(arguments)
        kernel = self.kernels.get(name) or self._kernel(name)
        apart = OnPages(name, given, self.readable[name]) if self.order == EARLY else None
        run = given[0], operators.THREADS[name], min(self.order, RANDOM), self.seed
        if apart is None:
            said = kernel(signature.words(given), *run, None, 0)
        else:
            said = kernel(signature.words(apart.given), *run, apart.pages, apart.count)
            apart.put_back()
        self.seed += 1
        if said:
            raise RuntimeError(f"{name}: {said.decode()}")

    def _kernel(self, name: str) -> Any:
        kernel = getattr(loaded(build(operators.SOURCES[name], self.texts)), f"run_{name}")
        kernel.restype = ctypes.c_char_p
        numbers = *[ctypes.c_longlong] * 2, ctypes.c_int, ctypes.c_uint
        kernel.argtypes = ctypes.c_char_p, *numbers, ctypes.POINTER(Pages), ctypes.c_longlong
        self.kernels[name] = kernel
        return kernel


@functools.cache
def loaded(library: Path) -> Any:
    return ctypes.CDLL(str(library))
