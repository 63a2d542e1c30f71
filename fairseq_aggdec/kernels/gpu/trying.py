"""Tries kernels on a card, each in a process of its own: one that crashes, hangs, errs or is slow costs nobody's work.

A kernel must give what PyTorch's operators give, in every case of its probe, and take less time for one row and for
many. What was found is kept (:mod:`~fairseq_aggdec.kernels.gpu.proof`).
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch

from fairseq_aggdec.kernels.gpu import operators, proof
from fairseq_aggdec.kernels.gpu.operators import PROBES, Probe, Tried
from fairseq_aggdec.kernels.gpu.proof import PROVEN, Card, Finding

# Seconds for a process to begin, and from then on for its kernels to be compiled, compared and timed.
BEGIN, TRY = 120.0, 60.0
ROWS = 1, 32  # that are timed: products of more are PyTorch's
CALLS, REPLAYS, TURNS = (
    20,
    5,
    5,
)  # calls in a graph; its replays between two looks at the clock; looks


class Place(NamedTuple):
    """Device and clock of a trial.

    Attributes:
        device: a GPU.
        milliseconds: that a call takes there, without its launch by the host.
    """

    device: torch.device
    milliseconds: Callable[[Callable[[], object]], float]


@contextmanager
def on_card() -> Iterator[Place]:
    """The current GPU of a process."""
    device = torch.device("cuda", torch.cuda.current_device())
    yield Place(device, lambda call: timed(call, device))
    torch.cuda.synchronize(device)


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of a call in a captured graph, the best of some turns."""
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        call()  # compiles, and sets up what libraries need
        graph.capture_begin()
        try:
            for _ in range(CALLS):
                call()
        finally:
            graph.capture_end()
        best = float("inf")
        for _ in range(TURNS + 1):  # the first one warms up
            begun.record(stream)
            for _ in range(REPLAYS):
                graph.replay()
            ended.record(stream)
            ended.synchronize()
            best = min(best, begun.elapsed_time(ended))
    return best / (CALLS * REPLAYS)


class Answer(NamedTuple):
    """Answer of a process: a verdict, and milliseconds as of a :class:`Finding`."""

    verdict: str
    milliseconds: dict[str, tuple[float, float]]


def alone(
    agree: Probe,
    tried: Tried,
    dtype: tuple[torch.dtype, ...],
    place: Callable[[], AbstractContextManager[Place]],
    pipe: Any,
) -> None:
    """Runs in a process of its own: says that it has begun, then gives an :class:`Answer`."""
    torch.set_num_threads(1)
    pipe.send(None)
    try:
        with place() as here, torch.inference_mode():
            pipe.send(_compared(agree, tried, dtype, here))
    except Exception as error:
        pipe.send(Answer(f"{type(error).__name__}: {error}"[:300], {}))


def _compared(agree: Probe, tried: Tried, dtype: tuple[torch.dtype, ...], here: Place) -> Answer:
    agreement = agree(here.device, *dtype)
    if agreement is not True:
        return Answer(agreement or "they differ from PyTorch's operators", {})
    times = {}
    for rows in ROWS:
        twins = tried.twins(here.device, rows, *dtype)
        times[str(rows)] = here.milliseconds(twins.fused), here.milliseconds(twins.plain)
    slower = [rows for rows, (fused, plain) in times.items() if fused >= plain]
    verdict = f"they are not faster than PyTorch's operators for {slower[0]} rows" if slower else ""
    return Answer(verdict or PROVEN, times)


def try_kernels(
    card: Card,
    place: Callable[[], AbstractContextManager[Place]] = on_card,
    seconds: tuple[float, float] = (BEGIN, TRY),
    probes: Iterable[tuple[Probe, tuple[torch.dtype, ...]]] | None = None,
) -> Iterator[tuple[str, Finding, bool]]:
    """Tries kernels one after the other, so that no two share the card's time.

    Args:
        card: what the findings are kept for.
        place: makes the device ready in a process; must be pickled.
        seconds: for a process to begin, and then to try its kernels.
        probes: probes and precisions; None: all that have been imported.

    Yields:
        names and precision, what was found, and whether that could be kept.
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once, and never asked for CUDA, which could not be forked.
    context.set_forkserver_preload(sorted({__name__, *(agree.__module__ for agree in PROBES)}))
    for agree, dtype in operators.probes() if probes is None else probes:
        tried = PROBES[agree]
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=alone, args=(agree, tried, dtype, place, there))
        process.start()
        there.close()
        answer = _answer(process, here, seconds)
        finding = Finding(proof.source_of(agree), *answer)
        what = " ".join([", ".join(tried.names), *(str(one).split(".")[1] for one in dtype)])
        yield what, finding, proof.write(card, proof.key_of(tried.names, dtype), finding)


def _answer(process: Any, pipe: Any, seconds: tuple[float, float]) -> Answer:
    """Reads what a process says of its kernels, or how it ended."""
    try:
        for most in seconds:
            begun = time.monotonic()
            if not pipe.poll(most):
                return Answer(f"no answer in {time.monotonic() - begun:.0f} s: it hangs", {})
            said = pipe.recv()
        return Answer(*said)
    except EOFError:
        process.join()
        return Answer(f"the process ended with {process.exitcode}", {})
    finally:
        process.kill()
        process.join(BEGIN)
