"""Threads of a command: their number, and how they wait for each other. Must be said before PyTorch is loaded."""

import os
from contextlib import suppress
from pathlib import Path

# Threads that wait by computing take the processor from the thread that they wait for where there are fewer processors
# than threads, or others use them: two threads were up to a hundred times slower than one.
ASLEEP = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
GROUPS = Path("/sys/fs/cgroup")


def set_up_threads() -> None:
    """Has the threads of this process and its children sleep while they wait, and be no more than a quota allows.

    What the user has set stays.
    """
    wanted = dict(ASLEEP)
    if processors() < len(os.sched_getaffinity(0)):  # PyTorch sees these
        wanted["OMP_NUM_THREADS"] = str(processors())
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def processors() -> int:
    """Number of processors that this process may use: of those that it may run on, as many as its container's quota."""
    here = len(os.sched_getaffinity(0))
    return min([here, *(max(1, int(quota)) for quota in _quotas())])


def _quotas() -> list[float]:
    """Processors that the control group of a container grants, in both versions of Linux; none: no limit."""
    quotas = []
    with suppress(OSError, ValueError):  # "max" is no number
        quota, period = (GROUPS / "cpu.max").read_text(encoding="ascii").split()
        quotas.append(int(quota) / int(period))
    with suppress(OSError, ValueError, ZeroDivisionError):
        old = GROUPS / "cpu"
        quota, period = (
            (old / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
        )
        quotas.append(int(quota) / int(period))
    return [one for one in quotas if one > 0]  # -1: no limit
