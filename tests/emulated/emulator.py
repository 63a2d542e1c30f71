"""The kernels as a GPU runs them, compiled by g++, with its blocks, warps and lanes: ``emulator.cpp``.

A launch may leave out a barrier, or the wait for earlier kernels: such faults need no source of their own.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fairseq_aggdec.kernels.gpu import nvrtc, operators
from tests.emulated.pages import OnPages, Pages
from tests.strict.device.bookkeeping import COMPILER, PLAIN

MACHINE, HEADER = (Path(__file__).with_suffix(ending) for ending in (".cpp", ".h"))
CACHE = Path(__file__).parents[2] / ".cache" / "emulated"
FLAGS = [
    *("-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC"),
    *("-w", "-fvisibility=hidden"),
]
# The compiler's own checks of the sources' addresses and indices end in functions of the emulator.
CHECKS = "-fsanitize=alignment,bounds"
# Who runs first of blocks, warps and lanes. EARLY: at random, and a kernel begins before those before it have ended.
FORWARD, BACKWARD, RANDOM, EARLY = range(4)
ORDERS = FORWARD, BACKWARD, RANDOM, EARLY
# Who waits for earlier kernels: all threads, as it is written; none; all but the last one of a block, which ends.
AS_WRITTEN, NOBODY, NOT_THE_LAST = range(3)
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
Barrier = tuple[str, int]  # file and line


class Launch(ctypes.Structure):
    """As in ``emulator.h``."""

    _fields_ = (
        ("parameters", ctypes.c_char_p),
        *((name, ctypes.c_longlong) for name in ("blocks", "threads", "order", "seed", "waits")),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_longlong),
        ("pages", ctypes.POINTER(Pages)),
        ("count", ctypes.c_longlong),
    )


def _call(statement: re.Match[str]) -> str:
    """A call of the emulator in place of a statement of PTX."""
    text = " ".join(statement[1].replace("\\\n", " ").split())
    said, _, operands = re.sub(r'"[=+]?\w"\s*\(', "(", text).partition(" : ")
    parts = re.split(r"[:,](?![^\[]*\])", operands)
    given = [part.strip() for part in parts if part.strip()]
    ends = re.findall(r"\\?\n", statement[0])  # what is behind it stays in its line
    return f"gpu::ptx({', '.join(['__LINE__', said, *given])});{''.join(ends)}"


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
    # A barrier of a warp is known by the line that asks for it.
    parts = {
        name: ASSEMBLER.sub(_call, texts[name]).replace("warp_meets();", "__syncwarp();")
        for name in nvrtc.files_of(source)
    }
    names = [name for name, of in operators.SOURCES.items() if of == source]
    kernels = "".join(f"RUN({name})\n" for name in names)
    parts["part.cpp"] = (
        f'#include "emulator.h"\nnamespace {{\n#include "{source}.cu"\n}}\n{kernels}'
    )
    own = _compiled(source, {HEADER.name: HEADER.read_text(), **parts}, "part.cpp", CHECKS)
    library = own.with_suffix(".so")
    if not library.exists():
        machine = {path.name: path.read_text(encoding="utf-8") for path in (HEADER, MACHINE)}
        both = str(own), str(_compiled("machine", machine, MACHINE.name))
        made = library.with_suffix(f".{os.getpid()}")
        subprocess.run([COMPILER, "-shared", *both, "-o", str(made)], check=True, env=PLAIN)
        made.replace(library)  # other processes may build it too
    return library


def _compiled(name: str, texts: Mapping[str, str], main: str, *more: str) -> Path:
    """Machine code of some files, of which the main one includes the others. Other processes wait for it."""
    stamp = hashlib.sha256(repr((FLAGS, more, texts)).encode()).hexdigest()[:16]
    found, folder = CACHE / f"{name}-{stamp}.o", CACHE / f"{name}-{stamp}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}-{stamp}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            folder.mkdir(exist_ok=True)
            for file, text in texts.items():
                (folder / file).write_text(text, encoding="utf-8")
            command = [COMPILER, *FLAGS, *more, "-c", str(folder / main), "-o", str(folder / "o")]
            subprocess.run(command, check=True, env=PLAIN)
            (folder / "o").replace(found)
            shutil.rmtree(folder)
    return found


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
        without: a barrier that is left out.
        waits: who waits for earlier kernels.

    Attributes:
        launches: how often each kernel was launched.
        readable: see :func:`read_early`.
    """

    def __init__(
        self,
        order: int = FORWARD,
        seed: int = 0,
        changes: Changes = NOTHING,
        without: Barrier = ("", 0),
        waits: int = AS_WRITTEN,
    ):
        self.order, self.seed, self.texts = order, seed, changed(changes)
        self.without, self.waits = without, waits
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
        file, line = self.without
        how = given[0], operators.THREADS[name], min(self.order, RANDOM), self.seed, self.waits
        pages = (apart.pages, apart.count) if apart else (None, 0)
        struct = signature.words(apart.given if apart else given)
        said = kernel(ctypes.byref(Launch(struct, *how, file.encode(), line, *pages)))
        if apart:
            apart.put_back()
        self.seed += 1
        if said:
            raise RuntimeError(f"{name}: {said.decode()}")

    def _kernel(self, name: str) -> Any:
        kernel = getattr(loaded(build(operators.SOURCES[name], self.texts)), f"run_{name}")
        kernel.restype = ctypes.c_char_p
        self.kernels[name] = kernel
        return kernel


@functools.cache
def loaded(library: Path) -> Any:
    return ctypes.CDLL(str(library))
