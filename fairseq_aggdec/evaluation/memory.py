"""Peak memory of decoding, each system in a process of its own (Linux)."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.evaluation.timing import System

MARK = "peak-memory "
# Name in the table -> system and what is added to the command line.
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "fairseq beam 1": ("beam1", []),
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


def measure_all(script: str, arguments: Sequence[str], batch_size: int) -> dict[str, float]:
    """Runs ``script --memory-of SYSTEM`` once per variant: name -> MiB."""
    peaks = {}
    for name, (system, more) in VARIANTS.items():
        command = [sys.executable, script, *arguments, *more, "--memory-of", system]
        command += ["--batch-sizes", str(batch_size)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
        if done.returncode or not lines:
            raise SystemExit(f"error: measuring {name} failed:\n{done.stderr[-2000:]}")
        peaks[name] = json.loads(lines[-1].removeprefix(MARK))
    return peaks
