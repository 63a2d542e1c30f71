"""Every kernel of a GPU by itself: what one does that fails, hangs or errs is known before anything else is asked.

    python -m scripts.recipes.gpu.each_kernel SEEDS

compares so many random cases of every kernel with PyTorch's operators on the GPU, as compute-sanitizer watches it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from fairseq_aggdec.cli.doctor import GPU_KERNELS
from fairseq_aggdec.kernels.gpu import operators
from fairseq_aggdec.kernels.gpu.nvrtc import Module
from fairseq_aggdec.kernels.switches import VARIABLE
from scripts.recipes.gpu.plan import Plan, Row, Rows
from tests.strict.device.bookkeeping import build, fused_kernels, in_one_thread

# Seconds for a process to begin and, from then on, to try its kernels; in a rehearsal nothing is compiled.
BEGIN, TRY, REHEARSED = 120.0, 30.0, 15.0
AT_ONCE = 6  # processes
CRASH, HANG, WRONG, NO_COMPILER = FAULTS = ("crash", "hang", "wrong", "compiler")
RIGHT = "right"


def every_kernel(plan: Plan) -> Rows:
    """Every kernel in a process of its own; one that fails, hangs or errs is switched off in all other stages."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    if plan.rehearse:
        build()
    asked = [
        (told, dtype)
        for told, (_, *precisions) in GPU_KERNELS.items()
        for dtype in precisions or [None]
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(_row, plan, context, *one) for one in asked]
        for row in as_completed(running):
            yield row.result()


def _row(plan: Plan, context: Any, told: str, dtype: torch.dtype | None) -> Row:
    names = operators.PROBES[GPU_KERNELS[told][0]]
    precision = "all" if dtype is None else str(dtype).removeprefix("torch.")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=alone, args=(plan, told, dtype, there))
    process.start()
    there.close()
    began, reason = time.monotonic(), _answer(process, here, plan.rehearse)
    row = {"kernels": ", ".join(names), "precision": precision}
    if reason == RIGHT:
        return row | {"is": RIGHT, "seconds": time.monotonic() - began}
    return row | {"is": "switched off", "error": reason, "off": f"no-{names[0]}"}


def _answer(process: Any, pipe: Any, rehearsed: bool) -> str:
    """What a process says of its kernels, or how it ended."""
    try:
        for seconds in (BEGIN, REHEARSED if rehearsed else TRY):
            if not pipe.poll(seconds):
                return f"no answer in {seconds:.0f} s: it hangs"
            said = str(pipe.recv())
        return said
    except EOFError:
        process.join()
        return f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join(BEGIN)


def alone(plan: Plan, told: str, dtype: torch.dtype | None, pipe: Any) -> None:
    """In a process of its own: says that it has begun, and whether its kernels do what PyTorch's operators do."""
    torch.set_num_threads(1)
    pipe.send("begun")
    agree = GPU_KERNELS[told][0]
    device = torch.device("cpu") if plan.rehearse else torch.device("cuda", 0)
    try:
        with kernels(plan), torch.inference_mode():
            same = agree(device, *([] if dtype is None else [dtype]))
            if not plan.rehearse:
                torch.cuda.synchronize()
        pipe.send(RIGHT if same else "it differs from PyTorch's operators")
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}"[:300])


@contextmanager
def kernels(plan: Plan) -> Iterator[None]:
    """The kernels of the GPU, in a rehearsal compiled as C++, some with the faults that are asked for."""
    if not plan.rehearse:
        yield
        return
    faults = dict(plan.faults)

    def run(name: str, *given: Any) -> None:
        fault = faults.get(name)
        if fault == CRASH:
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == HANG:
            signal.pause()
        if fault == NO_COMPILER:
            raise RuntimeError(f"NVRTC: {name}.cu(1): error: it does not compile")
        in_one_thread(name, *given)
        if fault == WRONG:
            written = [place for place, (_, own) in enumerate(_parameters(name)) if own]
            for place in written:
                if given[place] is not None:
                    given[place].add_(1)

    with fused_kernels(run):
        yield


def _parameters(name: str) -> Sequence[tuple[str, bool]]:
    return operators.SIGNATURES[name].parameters


def switch_off(rows: Iterator[Row]) -> None:
    """Switches off in this process what rows say."""
    words = [word for word in os.environ.get(VARIABLE, "").split(",") if word]
    words += [row["off"] for row in rows if "off" in row]
    if words:
        os.environ[VARIABLE] = ",".join(dict.fromkeys(words))


@contextmanager
def launches() -> Iterator[set[str]]:
    """Collects the names of the kernels that are launched, or captured, within this."""
    found: set[str] = set()
    plain = Module.launch

    def launch(module: Module, name: str, *given: Any) -> None:
        found.add(name)
        plain(module, name, *given)

    with mock.patch.object(Module, "launch", launch):
        yield found


def main(seeds: int) -> None:
    from tests.emulated.comparing import COMPARED

    device = torch.device("cuda", 0)
    with torch.inference_mode():
        for compare in (one for several in COMPARED.values() for one in several):
            for seed in range(seeds):
                try:
                    compare(seed, device)
                except TypeError:  # its searches are on the host
                    break
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(int(sys.argv[1]))
