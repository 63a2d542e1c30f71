"""What a card and its host can do at most: the floors under every other number.

python -m scripts.recipes.gpu.floors --output FILE         on a GPU
python -m scripts.recipes.gpu.floors --output FILE --cpu   the same, tiny, without one
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.bench.timing import synchronise
from fairseq_aggdec.kernels.gpu import launching
from fairseq_aggdec.kernels.gpu.dependent import LAUNCHES, Chain, captured
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import refusals, write_table
from scripts.recipes import tables

Row = dict[str, Any]


def floors(device: torch.device) -> Iterator[Row]:
    yield {"what": "CUDA, cuDNN", "is": f"{torch.version.cuda}, {torch.backends.cudnn.version()}"}
    tiny = device.type == "cpu"
    if not tiny:
        found = torch.cuda.get_device_properties(device)
        yield {"what": "memory, GiB", "is": f"{found.total_memory / 2**30:.0f}"}
        yield {"what": "compute capability", "is": f"{found.major}.{found.minor}"}
    one, count = torch.zeros(1, device=device), 10 if tiny else 2000
    yield {"what": "launch of a small kernel, us", "is": 1e6 * each(lambda: one.add_(1), count)}
    yield {"what": "number read by the host, us", "is": 1e6 * each(one.item, count)}
    if not tiny:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(100):
                one.add_(1)
        yield {"what": "small kernel in a graph, us", "is": 1e4 * each(graph.replay, 50)}
        yield from own_in_graphs(device)
    source = torch.zeros(2**10 if tiny else 2**28, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    seconds = each(lambda: target.copy_(source), 10)
    yield {"what": "copy, GB/s read and written", "is": 8 * len(source) / seconds / 1e9}
    width = 64 if tiny else 8192
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


def own_in_graphs(device: torch.device) -> Iterator[Row]:
    """A kernel of ours behind another in a graph, begun early and not."""
    for early in (True, False):
        what = f"own kernel in a graph, us, {'dependent launch' if early else 'plain launch'}"
        if early and (reason := launching.lacking(device)):
            yield {"what": what, "is": reason}
            continue
        replay = captured(functools.partial(Chain(device, torch.float16, 1).launch, early), device)
        yield {"what": what, "is": 1e6 / LAUNCHES * each(replay, 200)}


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--cpu", action="store_true")
    arguments = sys.argv[1:] if given is None else given
    args = parser.parse_args(arguments)
    with refusals(), torch.inference_mode():
        command = machine.command("scripts.recipes.gpu.floors", arguments)
        rows: list[Row] = []
        for row in floors(torch.device("cpu" if args.cpu else "cuda")):
            rows.append(row)
            title = "What a card and its host can do at most"
            write_table(args.output, title, command, tables.of_rows(rows), rows)


if __name__ == "__main__":
    main()
