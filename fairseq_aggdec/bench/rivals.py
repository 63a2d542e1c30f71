"""Systems of the benchmark in processes of their own, taken in turn: none has another's threads or caches beside it.

A process decodes when it is asked to and sleeps otherwise. All are bound to the same cores, with as many threads.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.bench import systems
from fairseq_aggdec.bench.engines import ASSISTED, CTRANSLATE2, LABELS
from fairseq_aggdec.bench.timing import System

OURS = ("greedy", "iad", "search5")
DEFAULT = (
    "beam5",
    "beam1",
    *(f"{name}{precision}" for name in OURS for precision in ("", *systems.PRECISIONS)),
    *(name for name in LABELS if name != ASSISTED),
)
# Engines that are asked about; why no row has them.
LEFT_OUT = (
    "OpenVINO is not measured: its exporter is, as that of ONNX Runtime, one for models of Hugging Face transformers, "
    "whose search stays in Python",
)
ASLEEP = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


class AbsentError(Exception):
    """A rival that cannot be measured here; the message says why."""


@dataclass
class Counted:
    """What the counters of another process say."""

    tokens: int = 0
    iterations: int = 0


class Rival(System):
    """A system in a process of its own.

    Args:
        name: ``greedy-int8``, a system and its precision, see :func:`~fairseq_aggdec.bench.systems.split`.
        arguments: the command line, for :class:`~fairseq_aggdec.api.session.Session`.
        threads: its number, and that of the cores to which it is bound.
    """

    def __init__(self, name: str, arguments: Sequence[str], threads: int):
        self.name = name
        self.counters: Any = Counted() if systems.split(name)[0] not in systems.OTHERS else None
        context = multiprocessing.get_context("spawn")
        self.place, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, name, list(arguments), threads), daemon=True
        )
        with environment({**ASLEEP, "OMP_NUM_THREADS": str(threads)}):
            self.process.start()
        theirs.close()
        if reason := self.answer():
            raise AbsentError(reason)

    def answer(self) -> Any:
        try:
            return self.place.recv()
        except EOFError:
            self.process.join()
            status = self.process.exitcode
            raise AbsentError(f"its process ended with status {status}") from None

    def timed(self, sample: Mapping[str, Any]) -> tuple[float, list[list[int]]]:
        self.place.send(sample["id"].tolist())
        seconds, outputs, counted = self.answer()
        if counted is not None:
            self.counters.tokens, self.counters.iterations = counted
        return seconds, outputs

    def decode(self, sample: dict[str, Any]) -> list[list[int]]:
        return self.timed(sample)[1]

    def close(self) -> None:
        self.place.close()  # its recv() ends with EOFError
        self.process.join()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def serve(place: Connection, name: str, arguments: list[str], threads: int) -> None:
    """The process of a rival: says None when it is ready, or why it cannot be, then decodes what it is asked for."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)
    try:
        session, system = loaded(name, arguments)
    except (SystemExit, ImportError, ValueError, RuntimeError, OSError) as error:
        place.send(" ".join(str(error).removeprefix("error: ").split()).rstrip("."))
        return
    place.send(None)
    batches: dict[tuple[int, ...], dict[str, Any]] = {}
    while True:
        try:
            sentences = tuple(place.recv())
        except EOFError:
            return
        if sentences not in batches:
            batches[sentences] = session.batch(sentences)
        seconds, outputs = system.timed(batches[sentences])
        counters = system.counters
        place.send((seconds, outputs, counters and (counters.tokens, counters.iterations)))


def loaded(name: str, arguments: Sequence[str]) -> tuple[Session, System]:
    """A rival's session and system, in this process."""
    system, flags = systems.split(name)
    given = [*arguments, *flags]
    session = Session(generation_parser(None), given, every=False, reads=["batch_size"])
    return session, systems.build(system, session, alone=True)


def entered(name: str, batch_size: int) -> bool:
    """Whether a system has a row for this batch size: batches of an engine's own are smaller ones, and drafts of an
    assistant are for one sentence at a time."""
    if name == ASSISTED:
        return batch_size == 1
    return name not in CTRANSLATE2 or CTRANSLATE2[name].rows < batch_size
