"""How long a new process takes until it has written its first sentences."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from fairseq_aggdec.bench import systems
from fairseq_aggdec.bench.timing import synchronise
from scripts.recipes.gpu.plan import PRECISIONS, Plan, Rows, shipped


def cold_start(plan: Plan) -> Rows:
    """A new process until its first sentences are written, the shipped model with IAD."""
    context = multiprocessing.get_context("spawn")
    there, here = context.Pipe()
    process = context.Process(target=first_sentences, args=(plan, time.time(), here))
    process.start()
    here.close()
    while there.poll(120):
        try:
            yield there.recv()
        except EOFError:
            break
    process.join()
    if process.exitcode:
        yield {"until": "the end", "error": f"the process ended with {process.exitcode}"}


def first_sentences(plan: Plan, began: float, pipe: Any) -> None:
    """In a process of its own: says how long after ``began`` it stands where."""

    def say(what: str) -> None:
        pipe.send({"until": what, "seconds": time.time() - began})

    say("packages are imported")
    session = plan.session(shipped(plan.folder), *PRECISIONS["fp32" if plan.rehearse else "fp16"])
    say("the model is loaded")
    system = systems.build("iad", session)
    for number, sample in enumerate(session.batches(1, 4), 1):
        system.decode(sample)
        synchronise()
        say(f"sentence {number} is written")
