"""Peak memory of decoding (Linux)."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.kernels.mapped import trim
from fairseq_aggdec.records.results import cell


def peak_of(system: System, batches: Sequence[dict[str, Any]]) -> float:
    """MiB that the process held at most while ``system`` decoded, model and interpreter included.

    On a GPU: the most that torch had allocated there. What loading took is given back first and not counted.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        trim()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for sample in batches:
        system.decode(sample)
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 2**10


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
