"""What a card and its host can do at most."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

from fairseq_aggdec.bench.timing import synchronise
from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.kernels.gpu.dependent import Chain, begins_early
from fairseq_aggdec.kernels.gpu.products import product
from scripts.recipes.gpu.each_kernel import kernels
from scripts.recipes.gpu.plan import Plan, Row, Rows, versions


def hardware(plan: Plan) -> Rows:
    """What the card and its host can do at most: the floors under every other number."""
    yield from versions(plan)
    device = torch.device("cpu" if plan.rehearse else "cuda")
    one, count = torch.zeros(1, device=device), 10 if plan.rehearse else 2000
    yield {"what": "launch of a small kernel, us", "is": 1e6 * each(lambda: one.add_(1), count)}
    yield own_launch(plan)
    yield {"what": "number read by the host, us", "is": 1e6 * each(one.item, count)}
    if not plan.rehearse:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(100):
                one.add_(1)
        yield {"what": "small kernel in a graph, us", "is": 1e4 * each(graph.replay, 50)}
        yield from own_in_graphs(device)
    size = 2**10 if plan.rehearse else 2**28
    source = torch.zeros(size, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    seconds = each(lambda: target.copy_(source), 10)
    yield {"what": "copy, GB/s read and written", "is": 8 * size / seconds / 1e9}
    width = 64 if plan.rehearse else 8192
    for dtype in (torch.float16, torch.float32):
        left = torch.randn(width, width, device=device).to(dtype)
        seconds = each(functools.partial(torch.mm, left, left), 10)
        name = str(dtype).removeprefix("torch.")
        yield {"what": f"product in {name}, TFLOP/s", "is": 2 * width**3 / seconds / 1e12}


def each(work: Callable[[], object], count: int) -> float:
    """Times a number of calls, in seconds a call; the device's work is included."""
    work()
    synchronise()
    began = time.perf_counter()
    for _ in range(count):
        work()
    synchronise()
    return (time.perf_counter() - began) / count


def own_launch(plan: Plan) -> Row:
    """What the host does to launch a kernel of ours, its checks of the arguments included."""
    device = torch.device("cpu" if plan.rehearse else "cuda")
    x, weight = torch.zeros(1, 512, device=device), torch.zeros(8, 512, device=device).t()
    with kernels(plan), torch.inference_mode():
        seconds = each(lambda: product(x, weight, None), 10 if plan.rehearse else 2000)
    return {"what": "launch of a kernel of ours, us", "is": 1e6 * seconds}


def own_in_graphs(device: torch.device) -> Rows:
    """A kernel of ours behind another in a graph, begun early and not."""
    for early in (True, False):
        what = f"own kernel in a graph, us, {'dependent launch' if early else 'plain launch'}"
        reason = operators.against(device, begins_early) if early else None
        replay = None if reason else Chain(device, 100).captured(early)
        yield {"what": what, "is": 1e4 * each(replay, 50) if replay else reason}
