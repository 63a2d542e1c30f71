"""Processes that work on a job: which GPU each of them has, how they end, and how many are started at once.

Workers need no numbers: claims say who does what. So torchrun, srun, an array of jobs, or a shell with ``&`` start them
all alike, and what the environment says is only asked for the GPU.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.after_fairseq import set_up_log
from fairseq_aggdec.jobs import ending, ray_tasks
from fairseq_aggdec.jobs.claims import LEASE
from fairseq_aggdec.jobs.job import BulkError
from fairseq_aggdec.jobs.ranks import IGNORED, local_rank
from fairseq_aggdec.waiting import processors

logger = logging.getLogger(__name__)

HERE, RAY = "here", "ray"
GPUS = "CUDA_VISIBLE_DEVICES"
NO_TIMEOUT = 60 * 24 * 365  # minutes; submitit's local jobs would end after two
TIMEOUTS = 1000  # times that a job on Slurm is queued again after it ran out of time
COMMANDS = {  # name -> module and function that read the command line from sys.argv
    "aggdec distill": ("fairseq_aggdec.cli.main", "main"),
    "aggdec-generate": ("fairseq_aggdec.cli.fairseq_commands", "generate"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of all commands that work on a job."""
    add = parser.add_argument_group("workers").add_argument
    size = "sentences (about) that a worker claims at a time, and loses when it is killed (default: 1000)"
    add("--shard-size", type=positive, default=1000, metavar="N", help=size)
    dead = f"a worker on another machine that is silent for so long is taken for dead (default: {LEASE:.0f})"
    add("--lease", type=positive, default=int(LEASE), metavar="SECONDS", help=dead)
    add(
        "--launcher",
        choices=(HERE, "local", "slurm", RAY),
        default=HERE,
        help="work in this process (default), or start --workers and wait: with submitit on this machine or on Slurm, "
        "or as tasks of a Ray cluster",
    )
    count = "processes that --launcher starts"
    add("--workers", type=positive, default=1, metavar="N", help=count)
    add(
        "--resources",
        "--slurm",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="what each worker asks for with --launcher: parameters of submitit, such as slurm_partition=gpu "
        "gpus_per_node=1 timeout_min=600, or of ray.remote, such as num_cpus=4",
    )


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(text)


def begin(cpu: bool) -> None:
    """Prepares this process to work: its GPU, its log, and an end in good order when it is asked to.

    Where ``SIGTERM`` ends it (a preempted job, ``kill``), the claim is given back, and nobody waits a lease for it.
    """
    set_up_log(os.environ.get("LOGLEVEL", "INFO").upper())
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, ending.ask)
    rank = local_rank(os.environ)
    if not cpu and torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    elif rank:
        logger.info(IGNORED, rank)


@dataclass
class Worker:
    """A command in a job of submitit; the cluster may stop it at any time and is asked to start it again.

    Attributes:
        command: of :data:`COMMANDS`. arguments: of the command line.
        environment: set, or, where None, unset before it begins.
    """

    command: str
    arguments: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)

    def __call__(self) -> None:
        for name, value in self.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        sys.argv = [*self.command.split(), *self.arguments]
        module, function = COMMANDS[self.command]
        status = getattr(importlib.import_module(module), function)()
        if status:
            raise RuntimeError(f"{self.command} ended with status {status}: see the log")

    def checkpoint(self) -> Any:
        """Returns what submitit queues when this job is preempted or out of time: the same, which goes on."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def launch(args: argparse.Namespace, command: str, logs: Path) -> None:
    """Starts ``--workers`` of a command with this process's arguments, and waits for them.

    Args:
        logs: folder of submitit's files.

    Raises:
        BulkError: a worker has failed; the others have done its work, or failed as well.
        ModuleNotFoundError: submitit or Ray is not installed.
    """
    arguments = [*sys.argv[1:], "--launcher", HERE]  # the last one counts
    workers = [
        Worker(command, arguments, environment(args.launcher, n)) for n in range(args.workers)
    ]
    resources = dict(map(setting, args.resources))
    if args.launcher == RAY:
        print(f"{command}: {len(workers)} workers in Ray", file=sys.stderr)
        failed = ray_tasks.run(workers, bool(getattr(args, "cpu", False)), resources)
    else:
        failed = _run_with_submitit(workers, args.launcher, command, logs, resources)
    if failed:
        raise BulkError(
            f"{len(failed)} of {len(workers)} workers failed: {failed[0]}; once that is mended, the same command "
            "goes on"
        )


def _run_with_submitit(
    workers: Sequence[Worker], launcher: str, command: str, logs: Path, resources: dict[str, Any]
) -> list[str]:
    """Runs workers as jobs of submitit; where to read about those that failed."""
    import submitit

    settings = {"name": command.replace(" ", "-"), **resources}
    if launcher == "local":
        settings["timeout_min"] = NO_TIMEOUT
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors() // len(workers))))
    executor = submitit.AutoExecutor(folder=logs, cluster=launcher, slurm_max_num_timeout=TIMEOUTS)
    executor.update_parameters(**settings)
    with executor.batch():
        jobs = [executor.submit(worker) for worker in workers]
    print(f"{command}: {len(jobs)} workers; logs in {logs}", file=sys.stderr)
    return [f"see {job.paths.stderr}" for job in jobs if job.exception() is not None]


def setting(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` -> both; whole numbers are such."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise BulkError(f"--resources {text}: give KEY=VALUE")
    return key, int(value) if value.isdigit() else value


def environment(launcher: str, number: int) -> dict[str, str | None]:
    """Sets what submitit's local jobs do not get: their number on the machine, and the GPUs, which it hides."""
    if launcher != "local":
        return {}
    return {"LOCAL_RANK": str(number), GPUS: os.environ.get(GPUS)}


def forget(generator: Any) -> None:
    """Makes a generator forget what it learned about drafts, so that a shard does not depend on those before it."""
    forget: Callable[[], None] | None = getattr(generator, "forget", None)
    if forget is not None:
        forget()
