"""The strict device itself: what it refuses, what it takes for a wait, what tensors on it are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.engine.graphs.conditions import decoding_on
from fairseq_aggdec.engine.graphs.streams import Streams
from fairseq_aggdec.windows.transfer import begin, on_host, read, to_device
from tests.strict.device.recorder import BLOCKING, KERNEL, TRANSFER, VIEW, Recorder
from tests.strict.device.strict_device import DEVICE, MixedDevices, strict_device


@pytest.fixture
def recorder(device: torch.device) -> Iterator[Recorder]:
    if device.type == "cuda":
        pytest.skip("this is about the device that takes a GPU's place")
    with strict_device() as found:
        yield found


def asked(recorder: Recorder, work: Callable[[], Any]) -> Counter[str]:
    recorder.events.clear()
    work()
    return Counter(event.kind for event in recorder.events)


def test_tensors_say_that_they_are_there(recorder: Recorder) -> None:
    x = torch.arange(4, device="cuda")
    assert x.is_cuda and x.device == DEVICE and (x + 1).device == DEVICE
    assert x.cpu().device.type == "cpu" and x.tolist() == [0, 1, 2, 3]
    x[1:3].fill_(7)
    assert x.tolist() == [0, 7, 7, 3]


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda there, here: there + here,
    "index_select": lambda there, here: there.index_select(0, here),
    "gather": lambda there, here: there.gather(0, here),
    "embedding": lambda there, here: F.embedding(here, there.view(-1, 1).float()),
    "cat": lambda there, here: torch.cat([there, here]),
    "where": lambda there, here: torch.where(there > 1, there, here),
    "masked_fill": lambda there, here: there.masked_fill(here > 1, 0),
    "index of the host": lambda there, here: here[there],
    "values of the host": lambda there, here: there.index_put_((there,), here),
    "attention": lambda there, here: F.scaled_dot_product_attention(
        there.view(1, 1, 2, 2).float(),
        there.view(1, 1, 2, 2).float(),
        here.view(1, 1, 2, 2).float(),
    ),
}


@pytest.mark.parametrize("name", MIXED)
@torch.inference_mode()
def test_mixed_operands_are_refused(recorder: Recorder, name: str) -> None:
    there, here = torch.arange(4, device="cuda"), torch.arange(4)
    with pytest.raises(MixedDevices):
        MIXED[name](there, here)
    assert (there + torch.tensor(2)).tolist() == [2, 3, 4, 5]  # no dimension: a number


WORK: dict[str, tuple[Callable[[Tensor], Any], dict[str, int]]] = {
    "a kernel": (lambda x: x + 1, {KERNEL: 1}),
    "a view": (lambda x: x.view(2, 2), {VIEW: 1}),
    "item": (lambda x: x[0].item(), {VIEW: 1, TRANSFER: 1, BLOCKING: 1}),
    "truth": (lambda x: bool(x[0] > 0), {VIEW: 1, KERNEL: 1, TRANSFER: 1, BLOCKING: 1}),
    "tolist": (lambda x: x.tolist(), {TRANSFER: 1, BLOCKING: 1}),
    "cpu": (lambda x: x.cpu(), {TRANSFER: 1, BLOCKING: 1}),
    "cpu, later": (lambda x: x.to("cpu", non_blocking=True), {TRANSFER: 1}),
    "equal": (lambda x: torch.equal(x, x), {KERNEL: 1, TRANSFER: 1, BLOCKING: 1}),
    "nonzero": (lambda x: x.nonzero(), {KERNEL: 1, BLOCKING: 1}),
    "boolean index": (lambda x: x[x > 1], {KERNEL: 2, BLOCKING: 1}),
    "index of the host": (
        lambda x: x[torch.tensor([1])],
        {KERNEL: 1, TRANSFER: 1, BLOCKING: 1},
    ),
    "a number by mask": (lambda x: x.__setitem__(x > 1, 0), {KERNEL: 2}),
    "a number by index": (lambda x: x.__setitem__(-1, 0), {VIEW: 1, TRANSFER: 1, BLOCKING: 1}),
    "a number by slice": (lambda x: x.__setitem__(slice(1, 3), 0), {VIEW: 1, KERNEL: 1}),
    "pageable": (lambda x: torch.tensor([1, 2], device=x.device), {TRANSFER: 1, BLOCKING: 1}),
    "pageable, no hurry": (
        lambda x: torch.tensor([1]).to(x.device, non_blocking=True),
        {TRANSFER: 1, BLOCKING: 1},
    ),
    "pinned": (lambda x: to_device([1, 2], x.device), {TRANSFER: 1}),
    "read at once": (lambda x: read([x, x > 1]), {KERNEL: 1, TRANSFER: 2, BLOCKING: 1}),
    "repeats": (lambda x: x.repeat_interleave(x), {KERNEL: 2, BLOCKING: 1}),
    "synchronize": (lambda x: torch.cuda.synchronize(), {BLOCKING: 1}),
}


@pytest.mark.parametrize("name", WORK)
@torch.inference_mode()
def test_what_work_is_taken_for(recorder: Recorder, name: str) -> None:
    x = torch.arange(4, device="cuda")
    work, expected = WORK[name]
    found = asked(recorder, lambda: work(x))
    # views of what is one anyway are free and not the point here
    assert {kind: found[kind] for kind in expected} == expected
    assert found[BLOCKING] == expected.get(BLOCKING, 0)
    assert found[TRANSFER] == expected.get(TRANSFER, 0)


def test_modules_keep_their_parameters_and_ties(recorder: Recorder) -> None:
    first, second = nn.Linear(3, 4), nn.Linear(3, 4)
    second.weight = first.weight
    weight = first.weight
    nn.ModuleList([first, second]).to(DEVICE)
    assert first.weight is second.weight is weight and weight.device == DEVICE
    weight.data.mul_(2)
    assert torch.equal(first.weight.cpu(), second.weight.cpu())
    first.half()
    assert second.weight.dtype is torch.float16


@torch.inference_mode()
def test_attention_in_half_precision_avoids_the_kernel_that_plans(recorder: Recorder) -> None:
    q = torch.randn(1, 1, 2, 8, device="cuda", dtype=torch.float16)
    mask = torch.zeros(1, 1, 2, 2, device="cuda", dtype=torch.float16)

    def names(work: Callable[[], Any]) -> set[str]:
        recorder.events.clear()
        work()
        return {event.operator for event in recorder.events if event.kind == KERNEL}

    def attend(mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, mask)

    assert names(attend) == {"attention: cudnn"}
    with decoding_on(DEVICE, Streams()):
        assert names(attend) == {"attention: flash"}
        masked = names(lambda: attend(mask))
    assert masked == {"attention: efficient", "attention: mask copied"}


def test_a_batch_is_read_once(recorder: Recorder) -> None:
    source = torch.tensor([[5, 6]]).to(DEVICE)
    assert asked(recorder, lambda: begin([source], []))[BLOCKING] == 1
    assert asked(recorder, lambda: on_host(source))[BLOCKING] == 0
    assert on_host(source).tolist() == [[5, 6]]
    source[0, 0] += 1  # read anew when it was written to
    assert on_host(source).tolist() == [[6, 6]]
    other = torch.tensor([[7, 8]]).to(DEVICE)
    assert on_host(other).tolist() == [[7, 8]]


def test_a_batch_that_another_thread_reads_forgets_none(recorder: Recorder) -> None:
    one, two = (torch.tensor([[5, token]]).to(DEVICE) for token in (6, 7))
    begin([one], [])
    begin([two], [])
    assert asked(recorder, lambda: (on_host(one), on_host(two)))[BLOCKING] == 0
    assert on_host(one).tolist() == [[5, 6]] and on_host(two).tolist() == [[5, 7]]
