"""CUDA C++ compiled while the program runs, by NVRTC, and loaded by the driver, both through ctypes.

Machine code is kept on disk: only the first process waits for the compiler. Where nothing can be kept, each one does.

NVRTC comes with PyTorch's CUDA wheels. ``torch.cuda._compile_kernel`` compiles with it too, but is private and asks for
the headers of an installed CUDA toolkit, which few machines have.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.kernels.gpu.launching import launcher

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).with_name("source")
SHARED = "shared.h"  # what every source includes
MOST_THREADS = 8  # that compile
DIGEST = hashlib.sha256().digest_size  # bytes before the machine code


def folder() -> Path | None:
    """Folder in which cubins are kept: one of the user that nobody else can write to; None: there is none.

    Raises:
        OSError: it cannot be made.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "fairseq_aggdec")
    place = Path(os.path.expanduser(cache))  # ~ stays where there is no home directory
    if not place.is_absolute():
        return None
    place.mkdir(0o700, parents=True, exist_ok=True)
    status = place.stat()
    return place if status.st_uid == os.getuid() and not status.st_mode & 0o022 else None


def without_folder() -> str:
    """Tells what to do where nothing can be kept."""
    return (
        "XDG_CACHE_HOME, or ~/.cache, must be a folder that you can write to, with a subfolder fairseq_aggdec that "
        "nobody else can write to"
    )


def kept(stamp: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
    """The machine code that ``make`` compiles, and ``stamp`` says all that it depends on."""
    path = None
    with suppress(OSError):
        if cache := folder():
            path = cache / f"{hashlib.sha256(repr(stamp).encode()).hexdigest()}.cubin"
            read = path.read_bytes() if path.exists() else b""
            if hashlib.sha256(code := read[DIGEST:]).digest() == read[:DIGEST]:
                return code
    code, written = make(), False
    if path:
        made = path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            made.write_bytes(hashlib.sha256(code).digest() + code)
            made.replace(path)  # other processes may write it too
            written = True
    if not written:
        _say_once()
    return code


@functools.cache
def _say_once() -> None:
    logger.info("kernels are compiled again in every process, some seconds: %s", without_folder())


def library() -> Any:
    """NVRTC.

    Raises:
        OSError: PyTorch has none.
    """
    folder, major = Path(torch.__file__).parent, (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{major}"
    # NVRTC opens a second library by its name, which 13.0 does not look for beside itself: so it is there already.
    for builtins in folder.parent.glob(f"nvidia/*/lib/libnvrtc-builtins.so.{major}*"):
        with suppress(OSError):
            ctypes.CDLL(str(builtins))
    # PyTorch's own library is linked with its NVRTC, wherever that was installed.
    places = [folder / "lib" / "libcaffe2_nvrtc.so", name]
    for place in (*places, *folder.parent.glob(f"nvidia/*/lib/{name}")):
        try:
            handle: Any = ctypes.CDLL(str(place))
            _ = handle.nvrtcCompileProgram
        except (OSError, AttributeError):
            continue
        return handle
    raise OSError("PyTorch has no NVRTC here")


def architectures(nvrtc: Any) -> list[int]:
    """Architectures that a compiler knows, 90 for ``sm_90``."""
    count = ctypes.c_int()
    _check(nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check(nvrtc.nvrtcGetSupportedArchs(numbers))
    return list(numbers)


def architecture(nvrtc: Any, major: int, minor: int) -> str:
    """Architecture to compile for, for a GPU of a compute capability: the newest that it runs, ``sm_90``.

    Raises:
        RuntimeError: the compiler knows none.
    """
    numbers = architectures(nvrtc)
    # Machine code runs on GPUs of the same major number.
    runs = [number for number in numbers if number // 10 == major and number % 10 <= minor]
    if not runs:
        raise RuntimeError(f"PyTorch's NVRTC knows no compute capability {major}.{minor}")
    return f"sm_{max(runs)}"


def compiled(nvrtc: Any, source: str, architecture: str, *more: str) -> bytes:
    """The kernels of a source as machine code for an architecture (``sm_90``); ``more`` options of the compiler, whose
    words are logged.

    Raises:
        RuntimeError: what the compiler says against them.
    """
    files = {name: (SOURCES / name).read_bytes() for name in files_of(source)}
    words = f"--gpu-architecture={architecture}", "--std=c++17", *more
    return kept(
        (*_version(nvrtc), *words, *files.values()),
        lambda: _compiled(nvrtc, source, files, words),
    )


INCLUDED = re.compile(r'#include "([\w.]+)"')


@functools.cache
def files_of(source: str) -> tuple[str, ...]:
    """The files that a source is made of: its own, then what that includes."""
    names = [f"{source}.cu"]
    for name in names:  # grows meanwhile
        included = INCLUDED.findall((SOURCES / name).read_text(encoding="utf-8"))
        names += [other for other in included if other not in names]
    return tuple(names)


def _version(nvrtc: Any) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _compiled(nvrtc: Any, source: str, files: Mapping[str, bytes], words: Sequence[str]) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    (name, text), *included = files.items()
    headers = _array([part for _, part in included])
    names = _array([other.encode() for other, _ in included])
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), text, name.encode(), len(included), headers, names
        )
    )
    try:
        options = _array([word.encode() for word in words])
        failed = nvrtc.nvrtcCompileProgram(program, len(options), options)
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        said = log.value.decode(errors="replace")
        logger.debug("NVRTC: %s", said)
        if failed:
            lines = said.strip().splitlines() or [""]  # warnings may come first
            raise RuntimeError(f"NVRTC: {next((x for x in lines if 'error' in x), lines[0])}")
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS, "nvrtc")


@functools.cache
def compiling(device: torch.device, source: str, *more: str) -> Future[bytes]:
    """The kernels of a source for a GPU, as machine code that a thread of its own begins to make now; arguments as of
    :func:`compiled`. A processor with several cores compiles several sources at once."""

    def code() -> bytes:
        compiler = library()
        target = architecture(compiler, *torch.cuda.get_device_capability(device))
        return compiled(compiler, source, target, *more)

    return _threads().submit(code)


def _array(texts: Sequence[bytes]) -> Any:
    return (ctypes.c_char_p * len(texts))(*texts)


def _check(result: int) -> None:
    if result:
        raise RuntimeError(f"NVRTC: error {result}")


class Module:
    """The kernels of a source on a GPU.

    Args:
        device: a GPU.
        source: the name of its file.
        names: of the kernels.
        more: options of the compiler.

    Raises:
        OSError, RuntimeError: they cannot be compiled or loaded.
    """

    def __init__(self, device: torch.device, source: str, names: Sequence[str], *more: str):
        code = compiling(device, source, *more).result()
        self.launcher, self.module, self.functions = launcher(device), ctypes.c_void_p(), {}
        with torch.cuda.device(device):
            call = self.launcher.call
            call("cuModuleLoadData", ctypes.byref(self.module), code)
            for name in names:
                function = ctypes.c_void_p()
                call("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
                self.functions[name] = function

    def launch(self, name: str, parameters: bytes, blocks: int, threads: int) -> None:
        """Launches a kernel, see :meth:`Launcher.launch`."""
        self.launcher.launch(self.functions[name], parameters, blocks, threads)
