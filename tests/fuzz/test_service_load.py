"""``aggdec serve`` under the largest request that it accepts: ordinary clients are served meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import ROOT
from tests.fuzz import budget

MODEL = ROOT / "checkpoints" / "ua_gec"
CLIENTS = 8
SLOWEST = 4.0  # seconds of an ordinary request
MEMORY = 128  # MiB that may be kept
# Seconds after which the service refuses what it has not answered: the expensive request lasts as long as the test.
TIMEOUT = max(4 * SLOWEST, budget.seconds())
LINES = (MODEL / "sample.src").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def service() -> Iterator[tuple[str, int]]:
    """Address and number of a process that serves the shipped model."""
    command = [sys.executable, "-m", "fairseq_aggdec.cli.main", "serve"]
    command += [str(MODEL / "checkpoint.pt"), str(MODEL), "--port", "0", "--device", "cpu"]
    command += ["--timeout", str(TIMEOUT)]
    process = subprocess.Popen(
        [*command, "--option", f"spm={MODEL / 'spm.model'}"],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT + 10) in (0, -signal.SIGTERM)


def resident(process: int) -> int:
    """Bytes of memory of a process."""
    pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def largest(address: str) -> int:
    """The status of a request of as much work as is accepted: the widest beam, the longest outputs."""
    body = {"sentences": LINES[:1] * 150, "beam": 32, "nbest": 32, "min_len": 200, "max_len_b": 200}
    return httpx.post(
        f"{address}generate", json=body, timeout=2 * TIMEOUT, trust_env=False
    ).status_code


def ordinary(address: str, first: int, until: float) -> list[tuple[int, float]]:
    """Status and seconds of one request after the other, each of one sentence."""
    found = []
    with httpx.Client(base_url=address, timeout=2 * TIMEOUT, trust_env=False) as client:
        while time.monotonic() < until:
            line = LINES[(first + len(found)) % len(LINES)]
            began = time.monotonic()
            answer = client.post("generate", json={"sentences": [line]})
            found.append((answer.status_code, time.monotonic() - began))
    return found


def test_ordinary_clients_beside_the_largest_request(service: tuple[str, int]) -> None:
    address, process = service
    assert all(status == 200 for status, _ in ordinary(address, 0, time.monotonic() + 1))
    before = resident(process)
    until = time.monotonic() + budget.seconds()
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        heavy = pool.submit(largest, address)
        asked = [pool.submit(ordinary, address, first, until) for first in range(CLIENTS)]
        found = [one for client in asked for one in client.result()]
        assert heavy.result() in (200, 504)  # it may not be done in its time
    grown = (resident(process) - before) / 2**20
    slowest = max(taken for _, taken in found)
    print(f"{len(found)} requests, the slowest {slowest:.2f} s; {grown:.0f} MiB more than before")
    assert {status for status, _ in found} == {200}
    assert slowest < SLOWEST
    assert grown < MEMORY
