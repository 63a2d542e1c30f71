"""The kernels of a GPU as a GPU runs them: 32 lanes, blocks of their own size, whoever runs first."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable

import pytest
import torch

from tests.emulated.comparing import COMPARED
from tests.emulated.emulator import FORWARD, ORDERS, RANDOM, Emulator, build_all
from tests.strict.device.bookkeeping import COMPILER, fused_kernels

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")

SEEDS = 4


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    build_all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("compare", [*itertools.chain(*COMPARED.values())])
@torch.inference_mode()
def test_kernels_do_what_operators_do(compare: Callable[[int], None], order: int) -> None:
    with fused_kernels(Emulator(order)):
        for seed in range(order * SEEDS, (order + 1) * SEEDS):
            compare(seed)


# Sources that a GPU would run for ever, or in which it reads beside an array -> what the emulator says.
WRONG = {
    "a thread does not come": ("if (threadIdx.x) __syncthreads();", "wait for"),
    "a thread has ended": ("if (threadIdx.x) return; __syncthreads();", "wait for"),
    "two places": (
        "if (threadIdx.x) __syncthreads();\n else __syncthreads();",
        "meet at different places",
    ),
    "a lane does not come": ("if (threadIdx.x % 32) __syncwarp();", "wait for ever"),
    "some lanes": ("__shfl_xor_sync(1, 1, 1);", "a shuffle without all lanes"),
    "beside an array": ("__shared__ int two[2]; two[threadIdx.x] = 1;", "outside of an array"),
    "an odd address": ("*(Sixteen*)((char*)p.window_tokens + 8) = Sixteen{};", "no multiple"),
}


@pytest.mark.parametrize("order", [FORWARD, RANDOM])
@pytest.mark.parametrize("what", WRONG)
def test_what_no_gpu_forgives(what: str, order: int) -> None:
    text, said = WRONG[what]
    head = "begin(const Begin p) {\n    wait_for_earlier_kernels();\n"
    emulator = Emulator(order, changes={"bookkeeping.cu": (head, head + text)})
    numbers = torch.tensor([[0, 0, 0, 0, 9, 0, 0]])
    room, words = torch.zeros(1, 10, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    given = [1, 3, 10, 0, 0, numbers, room, torch.tensor([0]), room[:, :2].clone(), words]
    for _ in range(2):  # it can go on
        with pytest.raises(RuntimeError, match=f"begin: .*{said}"):
            emulator("begin", *given, words.clone(), torch.zeros(1, dtype=torch.long))
    Emulator(order)("begin", *given, words.clone(), torch.zeros(1, dtype=torch.long))
