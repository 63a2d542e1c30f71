"""How long a test of random cases lasts, and which cases it sees.

``FUZZ_SECONDS`` is the time of a file (default 20). ``FUZZ_SEED`` is the first number; without it every run has other
cases. ``FUZZ_CASES`` is a number of cases of each test, whatever time they take. A failure names the number of its
case, and the command that repeats it.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator

SECONDS = 20.0


def first_seed() -> int:
    """``FUZZ_SEED``; chosen, and set for the workers of pytest, where it is not given."""
    return int(os.environ.setdefault("FUZZ_SEED", str(random.SystemRandom().randrange(10**9))))


def seconds() -> float:
    return float(os.environ.get("FUZZ_SECONDS", SECONDS))


def seeds(share: float = 1.0) -> Iterator[int]:
    """Numbers from :func:`first_seed` on, until a ``share`` of the file's time is over; one at least.

    ``FUZZ_CASES`` says instead how many they are.
    """
    end, first = time.monotonic() + share * seconds(), first_seed()
    if cases := int(os.environ.get("FUZZ_CASES", "0")):
        yield from range(first, first + cases)
        return
    for seed in itertools.count(first):
        yield seed
        if time.monotonic() >= end:
            return


def again(test: str, seed: int) -> str:
    """The command that repeats a case of a test, given as pytest names it."""
    return f"FUZZ_SECONDS=0 FUZZ_SEED={seed} python -m pytest -n 0 {test}"
