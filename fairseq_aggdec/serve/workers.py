"""Several processes that answer at one port. Each loads the model; what is mapped is in memory once."""

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import torch

Call = Callable[[], object]


def divided(count: int, ready: Call) -> Call:
    """Forks that many workers, before anything is loaded and before PyTorch has started threads.

    Args:
        ready: called in the first process when all workers are.

    Returns:
        in a worker: what it calls when it is ready. The first process does not return. It hands SIGTERM and Ctrl-C on,
        and ends when all workers have.

    Raises:
        SystemExit: in the first process, at the end; with a sentence if a worker has ended by itself.
    """
    heard_from, tell = os.pipe()
    workers = set()
    for _ in range(count):
        sys.stdout.flush()
        sys.stderr.flush()
        if (worker := os.fork()) == 0:
            os.close(heard_from)
            if "OMP_NUM_THREADS" not in os.environ:
                torch.set_num_threads(max(1, torch.get_num_threads() // count))
            return lambda: os.write(tell, b".")
        workers.add(worker)
    os.close(tell)
    _look_after(workers, heard_from, ready)


def _look_after(workers: set[int], heard_from: int, ready: Call) -> NoReturn:
    ending = False

    def end(*_: object) -> None:
        nonlocal ending
        ending = True
        for worker in workers:
            os.kill(worker, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    starting, failed = len(workers), False
    while workers:
        if starting and select.select([heard_from], [], [], 0.1)[0]:
            heard = len(os.read(heard_from, starting))
            starting = starting - heard if heard else 0  # nothing: all have ended
            if heard and not starting:
                ready()
        worker, _ = os.waitpid(-1, os.WNOHANG if starting else 0)
        workers.discard(worker)
        if worker and not ending:
            failed = True
            end()
    raise SystemExit("error: a worker has ended, and so have the others" if failed else 0)
