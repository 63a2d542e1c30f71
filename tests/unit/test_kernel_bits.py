"""The kernels of all sets of instructions give the same bits, those of processors that are not here included.

``kernel_cases.cpp`` is compiled for each and prints hashes of what it computes. Plain code emulates the tiles of AMX;
qemu emulates ARM64, where it and the cross compiler are installed (on Debian: g++-aarch64-linux-gnu, qemu-user).
"""

from __future__ import annotations

import functools
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

from fairseq_aggdec.kernels import library
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.switches import INSTRUCTIONS
from tests.unit.test_kernels import SOURCE, needs_kernels

ROOT = Path(__file__).resolve().parents[2]
EMULATED = Path(__file__).parents[1] / "amx_emulated.h"
CASES = Path(__file__).with_name("kernel_cases.cpp")
ARM, QEMU = "aarch64-linux-gnu-g++", ("qemu-aarch64",)


def setup_names() -> dict[str, Any]:
    """What setup.py defines."""
    with (
        mock.patch("setuptools.setup"),
        mock.patch.object(sys, "argv", ["setup.py"]),
    ):
        return runpy.run_path(str(ROOT / "setup.py"))


@functools.cache
def flags() -> dict[str, list[str]]:
    """What setup.py compiles with, by the set of instructions."""
    names = setup_names()
    common = [flag for flag in names["FLAGS"] if flag != "-O3"]
    return {
        name: [*common, *own] for name, own in ({"plain": []} | names["X86"] | names["ARM"]).items()
    }


@functools.cache
def lines(name: str, folder: Path) -> dict[str, list[str]]:
    """What the cases print, by their kind; skips where they cannot be compiled or run."""
    compiler, emulator = (ARM, QEMU) if name == "neon" else (os.environ.get("CXX", "g++"), ())
    for command in (compiler, *emulator):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")
    if name not in ("plain", "neon"):
        needed = "avx512" if name == "amx" else name
        if not int(lines("plain", folder)["supported"][0]) >> INSTRUCTIONS.index(needed) & 1:
            pytest.skip(f"this processor has no {needed}")
    own = [flag for flag in flags()[name] if not flag.startswith("-mamx")]
    own += [f'-DAGGDEC_EMULATE_AMX="{EMULATED}"'] if name == "amx" else []
    own += ["-static"] if name == "neon" else []
    program = folder / name
    subprocess.run([compiler, "-O1", *own, f"-I{SOURCE}", CASES, "-o", program], check=True)
    printed = subprocess.run([*emulator, program], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, list[str]] = {}
    for line in printed.stdout.splitlines():
        kind, _, case = line.partition(" ")
        found.setdefault(kind, []).append(case)
    assert INSTRUCTIONS[int(found["instructions"][0])] == name
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


@pytest.mark.parametrize("kind", ["int8", "bf16"])
@pytest.mark.parametrize("name", INSTRUCTIONS[1:])
def test_narrow_products_are_those_of_the_plain_kernels(name: str, kind: str, folder: Path) -> None:
    found, expected = lines(name, folder)[kind], lines("plain", folder)[kind]
    assert len(expected) > 100
    assert found == expected


@pytest.mark.parametrize("name", INSTRUCTIONS[2:])
def test_fp32_is_that_of_avx2(name: str, folder: Path) -> None:
    """Products, norms and attention; the plain kernels round each product, which the others do not."""
    found, expected = lines(name, folder)["fp32"], lines("avx2", folder)["fp32"]
    assert len(expected) > 100
    assert found == expected


def test_the_whole_library_compiles_for_arm64() -> None:
    if shutil.which(ARM) is None:
        pytest.skip(f"{ARM} is not installed")
    command = [ARM, *flags()["neon"], "-fsyntax-only", SOURCE / "kernels.cpp"]
    subprocess.run(command, check=True)


def test_libraries_that_are_compiled_at_once_share_no_object() -> None:
    names = setup_names()
    command = names["BuildKernels"](Distribution({"name": "kernels"}))
    command.ensure_finalized()
    with mock.patch.object(build_ext, "build_extension", autospec=True) as compiled:
        for name, own in names["X86"].items():
            command.build_extension(names["extension"](name, own))
    folders = {call.args[0].build_temp for call in compiled.call_args_list}
    assert len(folders) == len(names["X86"])


@needs_kernels
def test_a_library_of_other_instructions_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plain in library.FOLDER.glob("_plain.*"):
        shutil.copy(plain, tmp_path / plain.name.replace("_plain", "_avx2"))
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert library._open("avx2") is None


class Erring:
    """A library whose products of many rows, as those of tiles, have one wrong number."""

    def __init__(self, right: Any):
        self.right = right

    def __getattr__(self, name: str) -> Any:
        return getattr(self.right, name)

    def aggdec_multiply(self, p: int, x: int, size: int, y: int, room: int, threads: int) -> None:
        self.right.aggdec_multiply(p, x, size, y, room, threads)
        if room > 4 * 70:
            library.ctypes.c_float.from_address(y).value += 1e-5


@needs_kernels
def test_instructions_that_err_are_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.cache_clear()
    usual, opened = kernels(), library._open
    names = [*INSTRUCTIONS[: usual.aggdec_instructions() + 1], "neon"]
    monkeypatch.setattr(library, "supported", lambda plain: names)
    monkeypatch.setattr(
        library, "_open", lambda name: Erring(usual) if name == "neon" else opened(name)
    )
    kernels.cache_clear()
    try:
        assert kernels().aggdec_instructions() == usual.aggdec_instructions()
        assert not isinstance(kernels(), Erring)
    finally:
        kernels.cache_clear()
