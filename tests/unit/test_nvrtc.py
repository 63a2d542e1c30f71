"""How the fused kernels of a GPU are compiled by NVRTC, checked, and launched by the driver."""

from __future__ import annotations

import ctypes
import logging
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_aggdec.kernels.gpu import dependent, launching, nvrtc, operators, proof
from fairseq_aggdec.kernels.gpu.largest import finds_alike
from fairseq_aggdec.kernels.switches import VARIABLE
from tests.strict.device.bookkeeping import COMPILER, build


def compilers() -> list[str]:
    """NVRTC's libraries: of a CUDA toolkit, and of pip's packages in a folder of Python's path."""
    found = [f"libnvrtc.so.{version}" for version in (12, 13)]
    for folder in sys.path:
        found += map(str, sorted(Path(folder).glob("nvidia/*/lib/libnvrtc.so.1[23]")))
    return found


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled kernels are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fairseq_aggdec"


def test_nvrtc_compiles_the_source(caplog: pytest.LogCaptureFixture) -> None:
    """The real compiler, which needs no GPU; its kernels fit in what every GPU has for a block."""
    tried = 0
    caplog.set_level(logging.DEBUG, nvrtc.__name__)
    for place in compilers():
        try:
            compiler = ctypes.CDLL(place)
        except OSError:
            continue
        known = nvrtc.architectures(compiler)
        assert nvrtc.architecture(compiler, 9, 9) == "sm_90"
        for number in {80, 90, 100, 120} & set(known):
            for source, *more in forms():
                caplog.clear()
                given = source, f"sm_{number}", "--ptxas-options=-v", *more
                code = nvrtc.compiled(compiler, *given)
                assert code.startswith(b"\x7fELF") and "warning" not in caplog.text
                check_resources(caplog.text, source)
                tried += 1
    if not tried:
        pytest.skip(
            "no NVRTC; pip install --target FOLDER nvidia-cuda-nvrtc-cu12, with FOLDER in PYTHONPATH"
        )


def forms() -> Iterator[tuple[str, ...]]:
    """Every source with the options that it is compiled with."""
    for source in sorted(set(operators.SOURCES.values())):
        if source in operators.BY_PRECISION:
            yield from ((source, f"-DPRECISION={k}") for k in operators.PRECISIONS.values())
        else:
            yield (source,)


def check_resources(log: str, source: str) -> None:
    """That each kernel can be launched with its threads, as ptxas counts what it needs."""
    kernels = log.split("entry function '")[1:]
    own = {name for name in operators.SCHEMAS if operators.SOURCES[name] == source}
    assert {text.split("'")[0] for text in kernels} == own
    for text in kernels:
        assert " 0 bytes spill stores, 0 bytes spill loads" in text
        threads = operators.THREADS[text.split("'")[0]]
        (registers,) = re.findall(r"Used (\d+) registers", text)
        assert (int(registers) + 7) // 8 * 8 * threads <= 65536  # eight at a time
        assert sum(map(int, re.findall(r"(\d+) bytes smem", text))) <= 48 * 1024  # static
        assert threads & (threads - 1) == 0  # as `joined` takes halves


def test_nvrtc_is_where_pytorch_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch's own library, loaded already, or beside PyTorch among the packages of its wheels."""
    wheel = tmp_path / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    builtins = wheel.with_name("libnvrtc-builtins.so.12.8")
    for place in (builtins, wheel.with_name("libnvrtc-builtins.so.13.0")):
        place.touch()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    for place in (tmp_path / "torch" / "lib" / "libcaffe2_nvrtc.so", "libnvrtc.so.12", wheel):
        asked: list[str] = []

        def opened(name: str, wanted: str = str(place), asked: list[str] = asked) -> Any:
            asked.append(name)
            if name not in (wanted, str(builtins)):
                raise OSError
            return mock.Mock()

        with mock.patch.object(ctypes, "CDLL", opened):
            assert nvrtc.library() is not None
        assert asked[0] == str(builtins)  # which NVRTC 13.0 does not find
    nothing = mock.patch.object(ctypes, "CDLL", mock.Mock(side_effect=OSError))
    with nothing, pytest.raises(OSError, match="no NVRTC"):
        nvrtc.library()


class Compiler:
    """NVRTC that refuses every source."""

    SAYS = b"sm_70 is deprecated: warning\nchain.cu(3): error: tensor cores are needed\n"

    def nvrtcGetProgramLogSize(self, program: Any, size: Any) -> None:
        size._obj.value = len(self.SAYS)

    def nvrtcGetProgramLog(self, program: Any, log: Any) -> None:
        log.value = self.SAYS[:-1]

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: int(name == "nvrtcCompileProgram")


def test_what_the_compiler_says_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"NVRTC: chain\.cu.*error: tensor cores are needed"):
        nvrtc.compiled(Compiler(), "bookkeeping", "sm_90")


class Driver:
    """CUDA's driver, which runs the kernels as C++ where it is asked to launch them."""

    CONTEXT = 7

    def __init__(self) -> None:
        self.nodes: list[int] | None = None  # of the graph that is captured
        self.early: list[bool | None] = []  # of each launch in it
        self.library, self.names = ctypes.CDLL(str(build())), list[str]()
        self.current = threading.local()  # the contexts of a thread, the current one last

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.CONTEXT
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.current.stack = [*getattr(self.current, "stack", []), context.value]
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self.current.stack.pop()
        return 0

    def cuModuleLoadData(self, module: Any, code: bytes) -> int:
        return int(code != b"machine code")

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.names.append(name.decode())
        function._obj.value = len(self.names)
        return 0

    def cuStreamGetCaptureInfo_v3(self, stream: Any, *found: Any) -> int:
        state, number, graph, nodes, edges, count = found
        last = (self.nodes or [])[-1:]
        self.given = (ctypes.c_void_p * 1)(*last)
        state._obj.value, number._obj.value = int(self.nodes is not None), 5
        nodes._obj.contents, count._obj.value = ctypes.c_void_p.from_buffer(self.given), len(last)
        return int(graph is not None or edges is None)

    def captured(self, early: bool | None) -> None:
        """Notes a kernel in the graph: one of PyTorch's for None, else one of ours, launched early or not."""
        if self.nodes is not None:
            self.nodes.append(len(self.nodes) + 9)
            self.early.append(early)

    def cuLaunchKernelEx(self, config: Any, function: Any, *rest: Any) -> int:
        own = config._obj
        attribute = own.attributes[0]
        assert (own.count, attribute.id, attribute.value[0]) == (1, 6, 1) and own.stream == 3
        assert (own.blocks_y, own.blocks_z, own.threads_y, own.threads_z, own.shared) == (
            1,
        ) * 4 + (0,)
        self.captured(True)
        return self._run(function, own.blocks, own.threads, *rest)

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        blocks, _, _, threads, *_, stream, pointers, extra = rest
        assert stream.value == 3
        self.captured(False)
        return self._run(function, blocks, threads, pointers, extra)

    def _run(self, function: Any, blocks: int, threads: int, pointers: Any, extra: None) -> int:
        if getattr(self.current, "stack", [])[-1:] != [self.CONTEXT]:
            return 201  # an invalid device context
        assert extra is None and threads in operators.THREADS.values()
        kernel = getattr(self.library, f"run_{self.names[function.value - 1]}")
        (address,) = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))[:1]
        kernel(ctypes.c_void_p(address), ctypes.c_longlong(blocks))
        return 0


@contextmanager
def driven(driver: Driver) -> Iterator[torch.device]:
    """A GPU whose kernels a driver runs."""
    nvrtc.compiling.cache_clear()
    launching.launcher.cache_clear()
    with (
        mock.patch.object(nvrtc, "library", lambda: None),
        mock.patch.object(nvrtc, "architectures", lambda compiler: [90]),
        mock.patch.object(nvrtc, "compiled", lambda *_: b"machine code"),
        mock.patch.object(ctypes, "CDLL", lambda name: driver),
        mock.patch.multiple(
            torch.cuda,
            get_device_capability=lambda device: (9, 0),
            device=mock.MagicMock(),
            current_stream=mock.MagicMock(**{"return_value.cuda_stream": 3}),
        ),
    ):
        device = torch.device("cuda", 0)
        module = nvrtc.Module(device, "bookkeeping", tuple(operators.SCHEMAS))
        with mock.patch.object(operators, "module", lambda *_: module):
            yield device
    launching.launcher.cache_clear()


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")
def test_a_launch_gives_the_driver_what_a_kernel_reads() -> None:
    driver, arguments = Driver(), _begin_arguments()
    # In a thread that has asked the device for nothing yet.
    with driven(driver), ThreadPoolExecutor(1) as pool:
        pool.submit(operators._launch, "begin", *arguments).result()
        assert pool.submit(lambda: driver.current.stack).result() == []
    assert arguments[-3].tolist() == [[5, 6, 7]]
    assert arguments[-2].tolist() == [[0, 1, 2]]


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")
def test_kernels_begin_early_behind_our_own_alone() -> None:
    """Where PyTorch's kernel was launched in between, all before it must have ended. So it is without a capture."""
    driver = Driver()
    with driven(driver) as device:
        for allowed in (True, False):
            driver.nodes, driver.early = [], []
            with launching.overlapping(device, allowed):
                for own in (True, True, True, False, True, True):
                    if own:
                        operators._launch("begin", *_begin_arguments())
                    else:
                        driver.captured(None)
            early = [False, allowed, allowed, None, False, allowed]
            assert driver.early == early
        driver.nodes, driver.early = None, []
        with launching.overlapping(device, True):
            operators._launch("begin", *_begin_arguments())
    assert driver.early == []


def test_what_dependent_launches_need(monkeypatch: pytest.MonkeyPatch) -> None:
    device, driver = torch.device("cuda", 0), mock.Mock(["cuLaunchKernelEx"])
    assert launching.lacking(device) == "they are for a GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    for capability, said in (((8, 9), "compute capability 9.0"), ((9, 0), "CUDA 12.3")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, own=capability: own)
        assert said in str(launching.lacking(device))
    driver.cuStreamGetCaptureInfo_v3 = None
    assert launching.lacking(device) is None


@pytest.mark.parametrize("problem", [OSError("no NVRTC"), RuntimeError("error 209")])
def test_kernels_that_cannot_be_loaded(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch's operators go on, also where the kernels are forced."""
    device = torch.device("cuda", 3)
    with (
        mock.patch.object(operators, "module", side_effect=problem),
        mock.patch.object(operators, "_unproven", lambda *_: None),
    ):
        for _ in range(2):
            assert operators.against(device, dependent.begins_early) is None  # it has no source
            assert operators.against(device, finds_alike) == str(problem)
    operators.forget()
    assert caplog.text.count(f"not used on cuda:3, only slower: largest: {problem}") == 1


def test_a_gpu_that_the_compiler_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code runs on newer GPUs of the same major number; other GPUs are told of, not guessed."""
    monkeypatch.setattr(nvrtc, "architectures", lambda compiler: [75, 80, 86, 90, 100, 120])
    wanted = {(8, 0): 80, (8, 7): 86, (8, 9): 86, (9, 0): 90, (10, 3): 100, (12, 1): 120}
    for capability, number in wanted.items():
        assert nvrtc.architecture(None, *capability) == f"sm_{number}"
    for capability in ((7, 0), (11, 0), (13, 0)):
        with pytest.raises(RuntimeError, match=r"knows no compute capability \d+\.0"):
            nvrtc.architecture(None, *capability)


def test_machine_code_is_kept_for_the_next_process(empty_cache: Path) -> None:
    made = []

    def code() -> bytes:
        made.append(len(made))
        return b"code %d" % made[-1]

    assert [nvrtc.kept((9, "sm_90"), code) for _ in range(2)] == [b"code 0"] * 2
    assert nvrtc.kept((9, "sm_80"), code) == b"code 1"
    assert empty_cache.stat().st_mode & 0o777 == 0o700 and len([*empty_cache.iterdir()]) == 2
    for spoilt in (b"", b"code 0", bytes(40)):  # cut off, or of another kind
        for path in empty_cache.iterdir():
            path.write_bytes(spoilt)
        made.clear()
        assert nvrtc.kept((9, "sm_90"), code) == b"code 0"
        assert nvrtc.kept((9, "sm_90"), lambda: b"") == b"code 0"


@pytest.mark.parametrize("spoilt", ["others write", "a file", "no home"])
def test_where_no_machine_code_can_be_kept(
    spoilt: str,
    empty_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    empty_cache.parent.mkdir()
    if spoilt == "others write":
        empty_cache.mkdir()
        empty_cache.chmod(0o777)
    elif spoilt == "a file":
        empty_cache.touch()
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    made = iter((b"1", b"2"))
    nvrtc._say_once.cache_clear()
    caplog.set_level(logging.INFO)
    assert [nvrtc.kept((), lambda: next(made)) for _ in range(2)] == [b"1", b"2"]
    assert not empty_cache.is_dir() or not [*empty_cache.iterdir()]
    assert caplog.text.count("compiled again in every process, some seconds: XDG_CACHE_HOME") == 1


def test_the_drivers_errors_in_words() -> None:
    driver = mock.Mock(cuModuleLoadData=mock.Mock(return_value=209), other=lambda: 1)
    own = mock.Mock(driver=driver)
    with pytest.raises(RuntimeError, match=r"cuModuleLoadData: .* 209 \(the driver is too old"):
        launching.Launcher.call(own, "cuModuleLoadData")
    with pytest.raises(RuntimeError, match=r"other: CUDA driver error 1$"):
        launching.Launcher.call(own, "other")


def test_what_every_loop_launches_is_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    device, together = torch.device("cuda", 7), threading.Barrier(len(operators.EVERY_LOOP))

    def compiled(library: None, source: str, *options: str) -> bytes:
        together.wait(60)  # for all others
        return f"{source} {options}".encode()

    with (
        mock.patch.object(nvrtc, "library", lambda: None),
        mock.patch.object(nvrtc, "architectures", lambda compiler: [90]),
        mock.patch.object(nvrtc, "compiled", compiled),
        mock.patch.object(torch.cuda, "get_device_capability", lambda device: (9, 0)),
        mock.patch.object(proof, "against", lambda *_: None),
    ):
        operators.compile_ahead(device, torch.bfloat16)
        found = nvrtc.compiling(device, "attention", "-DPRECISION=2").result(60)
        assert found == b"attention ('sm_90', '-DPRECISION=2')"
        assert nvrtc.compiling(device, "vocabulary").result(60) == b"vocabulary ('sm_90',)"
    monkeypatch.setenv(VARIABLE, "none")
    with mock.patch.object(operators, "compiling") as begun:
        operators.compile_ahead(device, torch.bfloat16)
    assert not begun.called


def _begin_arguments() -> list[Any]:
    """Of one row at its start, with a draft of two tokens."""
    numbers = torch.tensor([[0, 0, 0, 0, 9, 0, 0]])
    given = [1, 3, 10, 0, 0, numbers, torch.full((1, 10), 5), torch.tensor([0])]
    out = torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    return [*given, torch.tensor([[6, 7]]), *out, torch.zeros(1, dtype=torch.long)]
