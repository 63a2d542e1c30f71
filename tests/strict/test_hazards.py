"""What could make a GPU silently wrong: other devices, other threads, switches of the process, clocks, failed captures.

Each test runs on the strict device, and with ``--device cuda`` on a GPU.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_aggdec.budget.pace import Pace
from fairseq_aggdec.engine.graphs import conditions, streams
from fairseq_aggdec.engine.graphs.capture import Captured, made
from fairseq_aggdec.engine.graphs.conditions import decoding_on, streams_of, tf32_allowed
from fairseq_aggdec.engine.graphs.streams import BESIDE, CAPTURE, CAPTURE_BESIDE, Streams
from fairseq_aggdec.search.board import Shape
from fairseq_aggdec.search.greedy.on_device import DeviceLoop
from fairseq_aggdec.windows.transfer import PendingCopy
from tests.strict.device import cases as device_cases
from tests.strict.device.cases import CASES
from tests.strict.device.strict_device import SECOND, strict_device
from tests.strict.test_methods import SIZES, assert_equal

BY_NAME = {case.name: case for case in CASES}
METHODS = ["greedy", "iad, unique", "gad", "blockwise, dense", "nar"]


@pytest.fixture
def other_gpu(gpu: torch.device) -> torch.device:
    """A device that is not the current one."""
    if torch.cuda.is_available() and torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    return SECOND


@pytest.mark.parametrize("name", [*METHODS, "nar, source copy", "beam 3", "gad, trees"])
def test_a_device_that_is_not_the_current_one(
    name: str, other_gpu: torch.device, tmp_path: Path
) -> None:
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    samples = [device_cases.batch(seed, 3) for seed in (1, 2, 3)]
    ready = device_cases.prepared(case, models, drafter, tmp_path, other_gpu)
    wanted = device_cases.expected(case, models, drafter, tmp_path, samples)
    for sample, reference in zip(samples, wanted, strict=True):
        assert_equal(ready.decode(sample, None), reference, other_gpu)
    assert torch.cuda.current_device() == 0


def test_what_is_told_comes_from_its_own_device(other_gpu: torch.device) -> None:
    told = PendingCopy(torch.arange(5, device=other_gpu))
    torch.cuda.current_stream(0).record_event().synchronize()
    assert told.read() == [0, 1, 2, 3, 4]


def test_numbers_under_way_are_nonsense_until_their_own_stream_was_asked() -> None:
    if torch.cuda.is_available():
        pytest.skip("this is about the device that takes a GPU's place")
    with strict_device():
        numbers = torch.arange(3, device=SECOND).to("cpu", non_blocking=True)
        torch.cuda.current_stream(0).record_event().query()
        assert numbers.tolist() != [0, 1, 2]
        torch.cuda.current_stream(SECOND).record_event().query()
        assert numbers.tolist() == [0, 1, 2]


class FailsOnce:
    """A function whose second call, which is captured, fails."""

    def __init__(self, numbers: Tensor):
        self.numbers, self.calls = numbers, 0

    def __call__(self) -> Tensor:
        self.calls += 1
        found = self.numbers + 1
        if self.calls == 2:
            raise RuntimeError("CUDA out of memory")
        return found


def test_a_failed_capture_goes_on_where_it_was(gpu: torch.device) -> None:
    main, failed = torch.cuda.current_stream(gpu), made.failed
    function = FailsOnce(torch.zeros(3, device=gpu))
    graph = Captured(function, gpu, torch.cuda.graph_pool_handle())
    assert graph.graph is None and made.failed == failed + 1
    assert torch.cuda.current_stream(gpu) == main
    for number in (1.0, 5.0):
        function.numbers.fill_(number)
        assert graph.replay().cpu().tolist() == [number + 1] * 3
    # The next capture succeeds.
    later = Captured(lambda: function.numbers * 2, gpu, torch.cuda.graph_pool_handle())
    assert later.graph is not None and later.replay().cpu().tolist() == [10.0] * 3


@pytest.mark.parametrize("name", ["greedy", "gad", "beam 3"])
def test_methods_whose_captures_fail(name: str, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("captures of a GPU do not fail when they are told to")
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(1, 3)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    with strict_device() as recorder:
        recorder.failing = 1000
        gpu = torch.device("cuda", 0)
        ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
        failed = made.failed
        for _ in range(3):
            assert_equal(ready.decode(sample, None), wanted, gpu)
        assert made.failed > failed and recorder.failing < 1000


def test_a_capture_leaves_the_caches_of_the_program(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a capture must not flush, and must not wait")

    x = torch.ones(3, device=gpu)
    for name in ("empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, never)
    graph = Captured(lambda: x + 1, gpu, torch.cuda.graph_pool_handle())
    assert graph.replay().cpu().tolist() == [2.0] * 3


def test_every_generator_has_its_own_streams(gpu: torch.device, tmp_path: Path) -> None:
    case = BY_NAME["gad"]
    models, drafter = device_cases.random_models(case, SIZES)
    found = []
    for _ in range(2):
        ready = device_cases.prepared(case, models, drafter, tmp_path, gpu)
        for _ in range(3):
            ready.decode(device_cases.batch(1, 2), None)
        streams = streams_of(ready.generator.verifier)
        found += [streams.get(gpu, BESIDE), streams.get(gpu, CAPTURE)]
    assert len({id(stream) for stream in found}) == 4
    # A replay uses the scratch memory of the stream on which it was captured, the drafter's encoder its own.
    assert found[0] != found[1]


@pytest.fixture
def set_by_others() -> Iterator[list[conditions.Switch]]:
    """Every switch of the process says the opposite of what decoding wants."""
    switches = conditions.switches(tf32=False)
    before = [switch.read() for switch in switches]
    for switch in switches:
        switch.write(not switch.wanted)
    yield switches
    for switch, value in zip(switches, before, strict=True):
        switch.write(value)


def test_a_switch_that_cannot_be_set_leaves_the_others_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values: dict[str, Any] = {"a": True}

    def refuse(value: Any) -> None:
        raise RuntimeError("no such switch")

    own = conditions.Switch(lambda: values["a"], lambda value: values.update(a=value), False)
    monkeypatch.setattr(
        conditions, "switches", lambda tf32: [own, conditions.Switch(lambda: True, refuse, False)]
    )
    held = conditions._Held()
    with pytest.raises(RuntimeError), held.set(False):
        pass
    assert values["a"] and not held.holders


def test_switches_of_the_process_are_put_back(
    gpu: torch.device, set_by_others: list[conditions.Switch]
) -> None:
    outside = [switch.read() for switch in set_by_others]
    inside = [switch.wanted for switch in set_by_others]
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with decoding_on(gpu, Streams()):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with decoding_on(gpu, Streams()):
        assert [switch.read() for switch in set_by_others] == inside
        thread.start()
        assert entered.wait(60)
    # Another thread still decodes.
    assert [switch.read() for switch in set_by_others] == inside
    leave.set()
    thread.join()
    assert [switch.read() for switch in set_by_others] == outside


def test_tf32_is_what_it_was_when_the_options_were_read(
    gpu: torch.device, set_by_others: list[conditions.Switch]
) -> None:
    assert tf32_allowed()
    with decoding_on(gpu, Streams(), tf32=True):
        assert tf32_allowed()
    with decoding_on(gpu, Streams(), tf32=False):
        assert not tf32_allowed()
    assert tf32_allowed()


def test_another_tf32_waits_for_its_turn(gpu: torch.device) -> None:
    """One switch of the process: who wants it otherwise does not change it under those who decode."""
    before, entered, found = tf32_allowed(), threading.Event(), []

    def other() -> None:
        with decoding_on(gpu, Streams(), tf32=True):
            entered.set()
            found.append(tf32_allowed())

    thread = threading.Thread(target=other)
    with decoding_on(gpu, Streams(), tf32=False):
        thread.start()
        assert not entered.wait(0.2) and not tf32_allowed()
        with decoding_on(gpu, Streams(), tf32=False):  # within each other the same is no clash
            assert not tf32_allowed()
        with (
            pytest.raises(RuntimeError, match="allow_tf32"),
            decoding_on(gpu, Streams(), tf32=True),
        ):
            pass
    thread.join(60)
    assert found == [True] and tf32_allowed() == before


@pytest.mark.parametrize("name", ["greedy", "gad", "beam 3"])
def test_autocast_around_generation_changes_nothing(
    name: str, device: torch.device, tmp_path: Path
) -> None:
    """On a CPU too; the strict device has no autocast of its own."""
    device = torch.device("cuda", 0) if device.type == "cuda" else device
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(1, 3)
    (wanted,) = device_cases.expected(case, models, drafter, tmp_path, [sample])
    ready = device_cases.prepared(case, models, drafter, tmp_path, device)
    with torch.autocast(device.type, torch.bfloat16):
        assert torch.is_autocast_enabled(device.type)
        for _ in range(3):
            assert_equal(ready.decode(sample, None), wanted, device)


@pytest.mark.parametrize("name", ["greedy", "gad", "iad, unique", "blockwise, dense"])
def test_no_clock_decides_a_shape(
    name: str, gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device reads the same windows whether or not the host runs ahead of it, but for one in vain at the end."""
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    sample = device_cases.batch(1, 9, 30)
    launch, found = DeviceLoop._launch, {}
    for ahead in (0, 1):
        shapes: list[Shape] = []

        def noted(self: DeviceLoop, sentences: Any, size: int, end: int, own=shapes) -> None:
            own.append(Shape(len(sentences), size, end))
            launch(self, sentences, size, end)

        monkeypatch.setattr(DeviceLoop, "_launch", noted)
        monkeypatch.setattr(Pace, "ahead", ahead)
        ready = device_cases.prepared(case, models, drafter, tmp_path, gpu, torch.float16)
        hypotheses = ready.decode(sample, None)
        scores = [ranked[0]["positional_scores"].tolist() for ranked in hypotheses]
        found[ahead] = shapes, scores
    assert len(found[1][0]) - len(found[0][0]) in (0, 1)
    assert found[1][0][: len(found[0][0])] == found[0][0]
    assert found[0][1] == found[1][1]
    assert len({shape.rows for shape in found[0][0]}) > 1  # rows have ended meanwhile


@pytest.mark.parametrize("name", ["greedy", "gad", "gad, trees", "beam 3", "greedy, prefix"])
def test_half_precision_rounds_alike_whatever_was_decoded_before(
    name: str, gpu: torch.device, tmp_path: Path
) -> None:
    case = BY_NAME.get(name) or BY_NAME["prefix, greedy"]
    models, drafter = device_cases.random_models(case, SIZES)
    sample, larger = device_cases.batch(1, 3), device_cases.batch(2, 4, 70)
    found = []
    for others in ([], [larger, sample, sample]):
        ready = device_cases.prepared(case, models, drafter, tmp_path, gpu, torch.float16)
        for other in others:
            ready.decode(other, device_cases.prefix_of(case, len(other["id"])))
            ready.generator.forget()
        hypotheses = ready.decode(sample, device_cases.prefix_of(case, 3))
        found.append([ranked[0]["positional_scores"].tolist() for ranked in hypotheses])
    assert found[0] == found[1]


def test_no_stream_is_captured_that_another_generator_works_on(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch gives out its streams in turn: the stream of one generator may be that of another."""
    pool = itertools.cycle([torch.cuda.Stream(gpu) for _ in range(4)])
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: next(pool))
    monkeypatch.setattr(streams, "POOL", 4)
    monkeypatch.setattr(streams, "_captured", {})
    generators = [Streams() for _ in range(5)]
    used = {
        purpose: {own.get(gpu, purpose).cuda_stream for own in generators}
        for purpose in (BESIDE, CAPTURE, CAPTURE_BESIDE)
    }
    assert not used[BESIDE] & (used[CAPTURE] | used[CAPTURE_BESIDE])


@pytest.mark.parametrize("name", ["gad, source copy", "gad, next, chain, causal"])
def test_generators_that_take_turns(name: str, gpu: torch.device, tmp_path: Path) -> None:
    """Each has its own memory, which the other does not write to."""
    case = BY_NAME[name]
    models, drafter = device_cases.random_models(case, SIZES)
    samples = [device_cases.batch(seed, rows, 20) for seed, rows in ((1, 3), (2, 5))]
    wanted = device_cases.expected(case, models, drafter, tmp_path, samples)
    pair = [device_cases.prepared(case, models, drafter, tmp_path, gpu) for _ in samples]
    for _ in range(3):
        for ready, sample, reference in zip(pair, samples, wanted, strict=True):
            assert_equal(ready.decode(sample, None), reference, gpu)
