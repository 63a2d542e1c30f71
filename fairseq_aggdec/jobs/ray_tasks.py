"""Workers as tasks of a Ray cluster: this machine, or the cluster that ``RAY_ADDRESS`` or ``ray start`` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

RETRIES = 20  # times that a worker is started again after it was killed


def run(
    workers: Sequence[Callable[[], None]], cpu: bool, resources: Mapping[str, Any]
) -> list[str]:
    """Runs each worker as a task, in a process of its own, and waits for all.

    Ray starts a task again whose process or machine is gone. It does not where the task has ended with an error.

    Args:
        workers: can be pickled; they run in this process's working folder.
        cpu: they need no GPU; else each gets one, if the cluster has GPUs.
        resources: arguments of ``ray.remote``, such as ``num_cpus=4``.

    Returns:
        the errors of those that failed, one line each.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    import ray

    ours = not ray.is_initialized()
    if ours:
        ray.init()
    try:
        gpus = 0 if cpu else min(1, ray.cluster_resources().get("GPU", 0))
        settings = {"num_gpus": gpus, "max_retries": RETRIES, "max_calls": 1, **resources}
        task = ray.remote(**settings)(_work)
        started = [task.remote(worker, os.getcwd()) for worker in workers]
        return [error for error in map(_error, started) if error is not None]
    finally:
        if ours:
            ray.shutdown()


def _work(worker: Callable[[], None], folder: str) -> None:
    os.chdir(folder)  # paths of the command line are relative to it
    worker()


def _error(task: Any) -> str | None:
    """Waits for a task; why it failed."""
    import ray

    try:
        ray.get(task)
    except ray.exceptions.RayTaskError as error:
        return " ".join(str(error.cause).split())
    except ray.exceptions.RayError as error:  # killed more often than it is started again
        return " ".join(str(error).split())
    return None
