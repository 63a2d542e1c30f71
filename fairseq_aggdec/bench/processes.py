"""Systems under measurement, each in its own process, so that they share no threads, caches or memory.

One process decodes at a time, the others sleep. All are bound to the same cores and have the same number of threads.
"""

import multiprocessing
import os
import pickle
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch
from fairseq import utils

from fairseq_aggdec.bench import memory, systems
from fairseq_aggdec.bench.systems import Entry
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.startup.after_fairseq import set_up_log
from fairseq_aggdec.startup.waiting import ASLEEP

# Engines that are asked about; why no row has them.
LEFT_OUT = (
    "ONNX Runtime and OpenVINO are not measured: their exporters take models of Hugging Face transformers, whose "
    "search stays in Python",
)


class AbsentError(Exception):
    """A system that cannot be measured here; the message says why."""


class SystemProcess(System):
    """A system in its own process, with the interface of :class:`System`.

    Args:
        entry: its name and options.
        arguments: options of fairseq-generate.
        threads: their number, and that of the cores to which the process is bound.

    Raises:
        AbsentError: it cannot be loaded, or an engine is not installed.
    """

    def __init__(self, entry: Entry, arguments: Sequence[str], threads: int):
        super().__init__(entry.name, self.decode)
        context = multiprocessing.get_context("spawn")
        self.place, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, entry, list(arguments), threads), daemon=True
        )
        with mock.patch.dict(os.environ, ASLEEP | {"OMP_NUM_THREADS": str(threads)}):
            self.process.start()
        theirs.close()
        answer = self.answer()
        if isinstance(answer, str):
            raise AbsentError(answer)
        vars(self).update(answer)

    def answer(self) -> Any:
        try:
            return self.place.recv()
        except EOFError:
            self.process.join()
            status = self.process.exitcode
            raise AbsentError(f"its process ended with status {status}") from None

    def ask(self, request: object) -> Any:
        self.place.send_bytes(
            pickle.dumps(request)
        )  # as bytes: not in shared memory, as torch would
        return self.answer()

    def timed(self, sample: dict[str, Any]) -> tuple[float, dict[int, list[int]]]:
        seconds, outputs, steps, counters, encoding = self.ask(utils.move_to_cpu(sample))
        self.steps.update(steps)
        if self.counters is not None:
            vars(self.counters).update(vars(counters))
            self.drafter.encoder_seconds = encoding
        return seconds, outputs

    def decode(self, sample: dict[str, Any]) -> list[list[int]]:
        return list(self.timed(sample)[1].values())

    def peak(self, batches: Sequence[dict[str, Any]]) -> float:
        """MiB that the process held at most while it decoded these batches (see ``memory.py``)."""
        return float(self.ask([utils.move_to_cpu(sample) for sample in batches]))

    def close(self) -> None:
        self.place.close()  # its recv() ends with EOFError
        self.process.join()


def serve(place: Connection, entry: Entry, arguments: list[str], threads: int) -> None:
    """Main function of the process: loads the system, then answers requests until the connection is closed.

    It first sends the attributes of the system, or a sentence why it cannot be loaded. A request is a batch, which is
    timed, or a list of batches, for which the peak of memory is sent. Batches come collated, on the host: sentences of
    one length have another order when they are collated a second time.
    """
    set_up_log()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)
    try:
        session, system = systems.load(entry, arguments, alone=True)
    except (SystemExit, ImportError, ValueError, RuntimeError, OSError) as error:
        place.send(" ".join(str(error).removeprefix("error: ").split()).rstrip("."))
        return
    said = ("beam", "stock", "models", "precision", "counters")
    place.send({name: getattr(system, name) for name in said})
    device = "cuda" if session.cuda else "cpu"
    while True:
        try:
            task = place.recv()
        except EOFError:
            return
        task = utils.apply_to_sample(lambda tensor: tensor.to(device), task)
        if isinstance(task, list):
            place.send(memory.peak_of(system, task))
            continue
        seconds, outputs = system.timed(task)
        counters = system.counters and replace(system.counters, wait=None)
        encoding = system.drafter.encoder_seconds
        steps = {sentence: system.steps[sentence] for sentence in outputs if system.steps}
        place.send((seconds, outputs, steps, counters, encoding))
