"""The fused kernels of a GPU, compiled as C++, against PyTorch's operators; how they are built, tried and launched."""

from __future__ import annotations

import ctypes
import logging
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.cli import doctor
from fairseq_aggdec.drafters.copy.copy_on_device import (
    MATCHES,
    CopyBoard,
    FusedCopyBoard,
    copies_alike,
)
from fairseq_aggdec.drafters.slot_window import (
    SlotForm,
    fused_slot_window,
    read_alike,
    slot_window,
)
from fairseq_aggdec.kernels.gpu import nvrtc, operators
from fairseq_aggdec.kernels.library import VARIABLE
from fairseq_aggdec.search.acceptance import NO_DRAFT, TopBeta, distance, exact
from fairseq_aggdec.search.board import BEFORE, ENDED, POSITION, ROUNDS, Board
from fairseq_aggdec.search.drafter import DeviceDrafter
from fairseq_aggdec.search.judge import fused
from fairseq_aggdec.search.judge.fused import FusedBookkeeping, written
from fairseq_aggdec.search.judge.on_device import Bookkeeping
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import Row
from tests.strict.device.bookkeeping import COMPILER, PLAIN, build, fused_kernels

CPU = torch.device("cpu")
PAD, EOS, UNK, FIRST = 1, 2, 3, 4
CASES = 300

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with fused_kernels(), torch.inference_mode():
        yield


def twin(board: Board) -> Board:
    """A board of the same numbers."""
    found = Board(board.room, *board.kind, pad=board.pad)
    for name, value in vars(board).items():
        if isinstance(value, Tensor):
            getattr(found, name).copy_(value)
    return found


def random_board(chance: random.Random, width: int, types: int, device: torch.device) -> Board:
    """Sentences of which some have ended and some have limits or forced tokens; they are where they may be."""
    sentences, prefix = chance.randint(1, 5), chance.choice((0, 0, 1, 3))
    kind = prefix, chance.choice((0, 1, 3)), device, chance.choice((torch.float32, torch.float16))
    board, rows = Board((sentences + chance.randint(0, 2), 20 + width), *kind, pad=PAD), []
    for index in range(sentences):
        own = [chance.choice((PAD, chance.randrange(types))) for _ in range(prefix)]
        end, floor = chance.randint(1, 16), chance.randint(0, 6)
        strict_floor = end if chance.random() < 0.2 else 0
        rows.append(Row(index, [EOS], end, floor, strict_floor, own[: chance.randint(0, prefix)]))
    board.set(rows)
    board.tokens.copy_(torch.randint(0, types, board.tokens.shape))
    for row in rows:
        numbers = board.numbers[row.index]
        numbers[POSITION] = chance.randint(0, row.end)
        numbers[BEFORE] = chance.randint(0, int(numbers[POSITION]))
        numbers[ENDED], numbers[ROUNDS] = chance.random() < 0.2, chance.randint(0, 3)
    owners = [*range(sentences), *[board.room[0]] * (board.room[0] + 1 - sentences)]
    chance.shuffle(owners)
    board.owners.copy_(torch.tensor(owners))
    return board


def random_logits(chance: random.Random, count: int, types: int) -> Tensor:
    logits = torch.randn(count, types) * 3
    if chance.random() < 0.5:  # ties
        logits = logits.round()
    hidden = chance.choice((0.0, 0.0, 0.3, 1.0))
    logits[torch.rand_like(logits) < hidden] = -torch.inf
    if chance.random() < 0.1:
        logits[torch.rand_like(logits) < 0.05] = torch.nan
    return logits


def compare_an_iteration(seed: int, device: torch.device = CPU) -> None:
    """One iteration of random sentences, by PyTorch's operators and by the kernels."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    width, types = chance.randint(1, 5), chance.choice((FIRST + 1, 9, 40, 2000))
    board = random_board(chance, width, types, device)
    accept = chance.choice((exact, TopBeta(1, 1.0), TopBeta(3, 1.5), TopBeta(2, float("inf"))))
    penalty = chance.choice((0.0, 0.0, 0.7, -2.0, float("inf")))
    rules = Rules(PAD, UNK, EOS, penalty, free_end=chance.random() < 0.3)
    drafter = DeviceDrafter()
    drafter.ragged, drafter.reads_features = chance.random() < 0.5, chance.random() < 0.5
    rows = len(board.owners) - chance.randint(0, len(board.owners) - 1)
    logits = random_logits(chance, rows * width, types).to(device)
    block = None
    if width > 1:
        block = torch.randint(0, types, (rows, width - 1))
        likely = logits.cpu().view(rows, width, types)[:, :-1].max(-1).indices
        block = torch.where(torch.rand(block.shape) < 0.6, likely, block)
        if drafter.ragged:
            ends = torch.randint(0, width, (rows, 1))
            block = block.masked_fill(torch.arange(width - 1) >= ends, NO_DRAFT)
        block = block.to(device)
    features = torch.randn(rows * width, board.features.size(1)).to(board.features)
    boards = board, twin(board)
    asked = []
    for kind, own in zip((Bookkeeping, FusedBookkeeping), boards, strict=True):
        books, picked = kind(rules, accept), own.rows(own.owners[:rows])
        asked.append(books.begin(own, picked, block, drafter))
        remembered = features if drafter.reads_features and features.numel() else None
        books.end(own, picked, asked[-1], logits.clone(), remembered)
    for plain, found in zip(*asked, strict=True):
        assert (plain is None) == (found is None)
        assert plain is None or torch.equal(plain.cpu(), found.cpu()), seed
    for plain, found in zip(*map(written, boards), strict=True):
        # One thread adds up a whole vocabulary in fp32, of which a GPU's thread has a small part.
        torch.testing.assert_close(found, plain, atol=1e-4, rtol=1e-4, equal_nan=True)


def compare_copies(seed: int, device: torch.device = CPU) -> None:
    """Blocks copied for random outputs, while rows move and some stand still."""
    chance = random.Random(seed)
    words = [NO_DRAFT, *range(FIRST, FIRST + chance.choice((2, 3, 9)))]
    sentences, size = chance.randint(1, 4), chance.randint(1, 5)
    board = Board((sentences + 1, 60), 0, 0, device, torch.float32, pad=PAD)
    outputs = [[chance.choice((EOS, EOS, words[-1]))] for _ in range(sentences)]
    board.set([Row(i, list(output), end=50, floor=0) for i, output in enumerate(outputs)])
    texts = [[EOS, *chance.choices(words, k=chance.randint(0, 12))] for _ in outputs]
    match = chance.choice(MATCHES)
    twins = CopyBoard(match, device), FusedCopyBoard(match, device)
    for copies in twins:
        copies.set(texts, [output[0] for output in outputs])
    owners = [*range(sentences), sentences + 1]
    for _ in range(6):
        chance.shuffle(owners)
        picked = torch.tensor(owners, device=device)
        rows = board.rows(picked)
        plain, found = (copies.block(board, picked, rows, size).cpu() for copies in twins)
        assert torch.equal(plain, found), seed
        for name in ("runs", "places"):
            one, other = (getattr(copies, name)[:sentences].cpu() for copies in twins)
            assert torch.equal(one, other), (seed, name)
        for row, sentence in enumerate(owners):
            if sentence >= sentences:
                continue
            output = outputs[sentence]
            before, drafted = len(output) - 1, [t for t in plain[row].tolist() if t != NO_DRAFT]
            if chance.random() < 0.8:
                output += [*drafted[: chance.randint(0, size)], chance.choice(words[1:])]
            board.tokens[sentence, : len(output)] = torch.tensor(output, device=device)
            places = torch.tensor([len(output) - 1, before], device=device)
            board.numbers[sentence, : BEFORE + 1] = places


def compare_slot_windows(seed: int, device: torch.device = CPU) -> None:
    """What a drafter reads of random sentences."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    board, size = random_board(chance, chance.randint(1, 5), 9, device), chance.randint(1, 6)
    shift, causal = chance.randint(0, min(1, size - 1)), chance.random() < 0.5
    # No fewer than what a row has committed since then, or in all.
    reach = [board.numbers[:, POSITION], board.numbers[:, POSITION] - board.numbers[:, BEFORE]]
    columns = int(reach[causal].max()) + shift + size + chance.randint(0, 3)
    form = SlotForm(columns, shift, size, causal, PAD)
    rows = board.rows(board.owners[: chance.randint(1, len(board.owners))])
    found = zip(slot_window(board, rows, form), fused_slot_window(board, rows, form), strict=True)
    for plain, own in found:
        assert torch.equal(plain.cpu(), own.cpu()), seed


def test_slot_windows_are_those_of_operators() -> None:
    for seed in range(CASES):
        compare_slot_windows(seed)


def test_iterations_are_those_of_operators() -> None:
    for seed in range(CASES):
        compare_an_iteration(seed)


def test_copies_are_those_of_operators() -> None:
    for seed in range(CASES):
        compare_copies(seed)


def test_logits_that_the_kernels_do_not_read_are_judged_by_operators() -> None:
    board = Board((1, 20), 0, 0, CPU, torch.float32, pad=PAD)
    board.set([Row(0, [EOS], end=9, floor=0)])
    books, rows = FusedBookkeeping(Rules(PAD, UNK, EOS), exact), board.rows(board.owners[:1])
    logits = torch.zeros(1, 18)[:, ::2]
    logits[0, 7] = 1
    books.end(board, rows, books.begin(board, rows, None, DeviceDrafter()), logits, None)
    assert board.tokens[0, :2].tolist() == [EOS, 7]


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_no_thread_overtakes_another(sanitizer: str, tmp_path: Path) -> None:
    """Blocks of four threads write what blocks of one write; no access races, none is outside."""
    source = Path(__file__).parents[1] / "strict" / "device" / "bookkeeping_races.cpp"
    flags = f"-std=c++17 -O0 -g1 -pthread -fno-sanitize-recover=all -fsanitize={sanitizer}".split()
    command = [
        "g++",
        *flags,
        f"-I{nvrtc.SOURCE.parent}",
        str(source),
        "-o",
        str(tmp_path / "races"),
    ]
    made = subprocess.run(command, capture_output=True, text=True, env=PLAIN)
    if made.returncode and "cannot find" in made.stderr:
        pytest.skip(f"this compiler has no library for -fsanitize={sanitizer}")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([str(tmp_path / "races")], capture_output=True, text=True, env=PLAIN)
    assert done.returncode == 0, done.stderr + done.stdout


def compilers() -> list[str]:
    """NVRTC's libraries: of a CUDA toolkit, and of pip's packages in a folder of Python's path."""
    found = [f"libnvrtc.so.{version}" for version in (12, 13)]
    for folder in sys.path:
        found += map(str, sorted(Path(folder).glob("nvidia/*/lib/libnvrtc.so.1[23]")))
    return found


def architectures(compiler: Any) -> list[int]:
    """What a compiler knows, as numbers: 90 for sm_90."""
    count = ctypes.c_int()
    assert compiler.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    numbers = (ctypes.c_int * count.value)()
    assert compiler.nvrtcGetSupportedArchs(numbers) == 0
    return list(numbers)


def test_nvrtc_compiles_the_source(caplog: pytest.LogCaptureFixture) -> None:
    """The real compiler, which needs no GPU; its kernels fit in what every GPU has for a block."""
    tried = 0
    caplog.set_level(logging.DEBUG, nvrtc.__name__)
    for place in compilers():
        try:
            compiler = ctypes.CDLL(place)
        except OSError:
            continue
        for number in {80, 90, 100} & set(architectures(compiler)):
            caplog.clear()
            code = nvrtc.compiled(compiler, f"sm_{number}", "--ptxas-options=-v")
            assert code.startswith(b"\x7fELF") and all(
                name.encode() in code for name in operators.SCHEMAS
            )
            assert "warning" not in caplog.text
            check_resources(caplog.text)
            tried += 1
    if not tried:
        pytest.skip(
            "no NVRTC; pip install --target FOLDER nvidia-cuda-nvrtc-cu12, with FOLDER in PYTHONPATH"
        )


def check_resources(log: str) -> None:
    """That each kernel can be launched with its threads, as ptxas counts what it needs."""
    kernels = log.split("entry function '")[1:]
    assert {text.split("'")[0] for text in kernels} == set(operators.SCHEMAS)
    for text in kernels:
        assert " 0 bytes spill stores, 0 bytes spill loads" in text
        threads = operators.THREADS[text.split("'")[0]]
        (registers,) = re.findall(r"Used (\d+) registers", text)
        assert int(registers) * threads <= 65536
        assert sum(map(int, re.findall(r"(\d+) bytes smem", text))) <= 48 * 1024  # static
        assert threads & (threads - 1) == 0  # as `joined` takes halves


def test_nvrtc_is_where_pytorch_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch's own library, loaded already, or beside PyTorch among the packages of its wheels."""
    wheel = tmp_path / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    for place in (tmp_path / "torch" / "lib" / "libcaffe2_nvrtc.so", "libnvrtc.so.12", wheel):

        def opened(name: str, wanted: str = str(place)) -> Any:
            if name != wanted:
                raise OSError
            return mock.Mock()

        with mock.patch.object(ctypes, "CDLL", opened):
            assert nvrtc.library() is not None
    nothing = mock.patch.object(ctypes, "CDLL", mock.Mock(side_effect=OSError))
    with nothing, pytest.raises(OSError, match="no NVRTC"):
        nvrtc.library()


class Compiler:
    """NVRTC that refuses every source."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: int(name == "nvrtcCompileProgram")


def test_what_the_compiler_says_is_told() -> None:
    with pytest.raises(RuntimeError, match="NVRTC"):
        nvrtc.compiled(Compiler(), "sm_90")


class Driver:
    """CUDA's driver, which runs the kernels as C++ where it is asked to launch them."""

    CONTEXT = 7

    def __init__(self) -> None:
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

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        if getattr(self.current, "stack", [])[-1:] != [self.CONTEXT]:
            return 201  # an invalid device context
        blocks, _, _, threads, *_, pointers, extra = rest
        assert extra is None and threads.value in operators.THREADS.values()
        kernel = getattr(self.library, f"run_{self.names[function.value - 1]}")
        kernel(ctypes.c_void_p(pointers[0]), ctypes.c_longlong(blocks.value), ctypes.c_longlong(1))
        return 0


def test_a_launch_gives_the_driver_what_a_kernel_reads() -> None:
    driver = Driver()
    with (
        mock.patch.object(nvrtc, "library", lambda: None),
        mock.patch.object(nvrtc, "compiled", lambda compiler, architecture: b"machine code"),
        mock.patch.object(ctypes, "CDLL", lambda name: driver),
        mock.patch.multiple(
            torch.cuda,
            get_device_capability=lambda device: (9, 0),
            device=mock.MagicMock(),
            current_stream=mock.MagicMock(**{"return_value.cuda_stream": 0}),
        ),
    ):
        module = nvrtc.Module(torch.device("cuda", 0), tuple(operators.SCHEMAS))
        with mock.patch.object(operators, "module", lambda device: module):
            arguments = _begin_arguments()
            # In a thread that has asked the device for nothing yet.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(operators._launch, "begin", *arguments).result()
                assert pool.submit(lambda: driver.current.stack).result() == []
    assert arguments[-3].tolist() == [[5, 6, 7]]
    assert arguments[-2].tolist() == [[0, 1, 2]]


def _begin_arguments() -> list[Any]:
    """Of one row at its start, with a draft of two tokens."""
    numbers = torch.tensor([[0, 0, 0, 0, 9, 0, 0]])
    given = [1, 3, 10, 0, 0, numbers, torch.full((1, 10), 5), torch.tensor([0])]
    out = torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    return [*given, torch.tensor([[6, 7]]), *out, torch.zeros(1, dtype=torch.long)]


def test_kernels_are_tried_once_and_left_where_they_differ(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, ngrams = Rules(PAD, UNK, EOS), Rules(PAD, UNK, EOS, no_repeat_ngram_size=3)
    assert type(fused.bookkeeping(rules, exact, CPU)) is FusedBookkeeping
    assert type(fused.bookkeeping(ngrams, exact, CPU)) is Bookkeeping
    assert type(fused.bookkeeping(rules, distance(1, 9), CPU)) is Bookkeeping
    assert operators.usable(CPU, copies_alike) and operators.usable(CPU, read_alike)
    calls = []

    def differ(device: torch.device) -> bool:
        calls.append(device)
        return False

    for _ in range(2):
        assert operators.against(CPU, differ) == "they differ from PyTorch's operators"
    assert calls == [CPU] and caplog.text.count("differ") == 1
    monkeypatch.setenv(VARIABLE, "none")
    assert operators.against(CPU, copies_alike) == f"{VARIABLE}=none"
    assert type(fused.bookkeeping(rules, exact, CPU)) is Bookkeeping


def test_kernels_that_err_are_found_out(caplog: pytest.LogCaptureFixture) -> None:
    """A kernel that writes something else is not used, and one that cannot be made is no error."""

    def wrong(count: int, width: int, *arguments: Any) -> None:
        arguments[-2].fill_(3)

    fill = lambda *arguments: arguments[-1].fill_(5)  # noqa: E731
    broken = mock.Mock(begin=wrong, copy_block=fill, slots=fill)
    with mock.patch.object(operators, "operators", lambda: broken):
        for agree in (fused.decides_alike, copies_alike, read_alike):
            assert not operators.usable(CPU, agree)
    assert caplog.text.count("not used") == 3
    caplog.set_level(logging.INFO)
    operators.tried_against.cache_clear()
    with mock.patch.object(operators, "ready", side_effect=OSError("no NVRTC")):
        assert operators.against(CPU, copies_alike) == "no NVRTC"
    assert "no NVRTC" in caplog.text


def test_doctor_tells_of_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(doctor.of_gpu_kernels(CPU))
    assert len(found) == 4 and set(found.values()) == {"compiled"}
    operators.tried_against.cache_clear()
    own = operators.operators()
    kept = {name: getattr(own, name) for name in operators.SCHEMAS if name != "beam_step"}
    with mock.patch.object(
        operators, "operators", lambda: mock.Mock(beam_step=lambda *_: None, **kept)
    ):
        told = dict(doctor.of_gpu_kernels(CPU))
    assert {name for name in told if told[name] != "compiled"} == {"steps of beam search"}
    assert "they differ from PyTorch's operators" in told["steps of beam search"]
    monkeypatch.setenv(VARIABLE, "none")
    assert all(f"{VARIABLE}=none" in what for _, what in doctor.of_gpu_kernels(CPU))
