"""Peak memory of decoding, each system in a process of its own (Linux)."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.records.results import cell

MARK = "peak-memory "
# Name in the table -> system and what is added to the command line.
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "fairseq beam 1": ("beam1", []),
    "fairseq beam 5": ("beam5", []),
    "ours, beam 5": ("search5", []),
    "ours, IAD": ("iad", []),
    "ours, IAD, --no-weight-packing": ("iad", ["--no-weight-packing"]),
}


def peak_of(system: System, batches: Sequence[dict[str, Any]]) -> float:
    """MiB that the process held at most while ``system`` decoded, model and interpreter included.

    On a GPU: the most that torch had allocated there. What loading took is given back first and not counted.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        _trim()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for sample in batches:
        system.decode(sample)
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 2**10


def _trim() -> None:
    """Gives freed memory back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def report(system: System, batches: Sequence[dict[str, Any]]) -> None:
    """Prints the peak where :func:`measure`, in another process, reads it."""
    print(MARK + json.dumps(peak_of(system, batches)))


def measure(module: str, arguments: Sequence[str], system: str, batch_size: int) -> float:
    """MiB that ``python -m MODULE ARGUMENTS --memory-of SYSTEM`` reports."""
    command = [sys.executable, "-m", module, *arguments, "--memory-of", system]
    command += ["--batch-sizes", str(batch_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        raise SystemExit(f"error: measuring {system} failed:\n{done.stderr[-2000:]}")
    peak: float = json.loads(lines[-1].removeprefix(MARK))
    return peak


def measure_variants(module: str, arguments: Sequence[str], batch_size: int) -> dict[str, float]:
    """The peak of each of the variants: name -> MiB."""
    return {
        name: measure(module, [*arguments, *more], system, batch_size)
        for name, (system, more) in VARIANTS.items()
    }


def markdown(peaks: Mapping[int, Mapping[str, float]]) -> str:
    """The table of batch size -> system -> MiB; ratios are to the first system."""
    first = next(iter(next(iter(peaks.values()))))
    rows = [f"| system | batch | MiB | x {cell(first)} |", "|---|---|---|---|"]
    for batch_size, by_system in peaks.items():
        base = by_system[first]
        rows += [
            f"| {cell(n)} | {batch_size} | {p:.0f} | {p / base:.2f} |" for n, p in by_system.items()
        ]
    return "\n".join(rows)
