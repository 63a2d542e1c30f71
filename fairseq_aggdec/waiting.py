"""Tells how threads wait for each other. Must be said before PyTorch is loaded."""

from __future__ import annotations

import os

# Threads that wait by computing take the processor from the thread that they wait for where there are fewer processors
# than threads, or others use them: two threads were up to a hundred times slower than one.
ASLEEP = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


def sleep_while_waiting() -> None:
    """Has the threads of this process and its children sleep while they wait, unless the user has said otherwise."""
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)
