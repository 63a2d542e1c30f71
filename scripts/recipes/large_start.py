"""Write a table of the processor time and the memory that a large model takes until its first sentence is written.

    python -m scripts.recipes.large_start work/large --size large --output work/large/tables/start

Each row is a process of its own with one thread. WORK has the folders of large_rivals.sh: model, packed-int8. Seconds
are of the processor, from the import of this package on. "Own memory" is what no other process shares while a first one
with the same files is alive: what one more worker costs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_table

MIB = 1024  # KiB, the unit of /proc
NAMES = "model", "beam", "ready, s", "first sentence, s", "memory, MiB", "at the peak", "own memory"
HEAD = "| " + " | ".join(NAMES) + " |\n" + "|---" * len(NAMES) + "|"


# A process of its own, which has imported nothing of ours before its clock begins. It stays until its input ends.
CHILD = """
import json, sys, time
import torch
torch.set_num_threads(1)
began = time.process_time()
from fairseq_aggdec import from_pretrained
path, data, beam, options = sys.argv[1:]
given = {"device": "cpu", "max_len_a": 0, "max_len_b": 20, **json.loads(options)}
model = from_pretrained(path, data, beam=int(beam), **given)
ready = time.process_time() - began
model.translate([" ".join(model.task.source_dictionary.symbols[10:30])])
print(json.dumps([ready, time.process_time() - began]), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Start:
    """One process; seconds of processor time, memory in MiB: after the first sentence, at the peak, its own."""

    model: str
    beam: int
    ready: float
    first: float
    memory: float
    peak: float
    own: float

    def row(self) -> str:
        seconds = f"{self.ready:.2f} | {self.first:.2f}"
        return f"| {self.model} | {self.beam} | {seconds} | {self.memory:.0f} | {self.peak:.0f} | {self.own:.0f} |"


def measured(name: str, path: Path, data: Path, beam: int, options: Mapping[str, Any]) -> Start:
    """Starts two processes; the first one holds what both share, the second one is measured."""
    command = [sys.executable, "-c", CHILD, str(path), str(data), str(beam), json.dumps(options)]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(2):
            processes.append(subprocess.Popen(command, env=alone, **pipes))  # type: ignore[call-overload]
            assert processes[-1].stdout is not None
            ready, first = json.loads(processes[-1].stdout.readline())
        status = _kibibytes(processes[-1].pid, "status")
        shares = _kibibytes(processes[-1].pid, "smaps_rollup")
        own = shares["Private_Clean"] + shares["Private_Dirty"]
        memory, peak = status["VmRSS"] / MIB, status["VmHWM"] / MIB
        return Start(name, beam, ready, first, memory, peak, own / MIB)
    finally:
        for process in processes:
            process.communicate()


def _kibibytes(process: int, file: str) -> dict[str, int]:
    text = Path(f"/proc/{process}/{file}").read_text()
    return {name: int(size) for name, size in re.findall(r"(?m)^(\w+):\s+(\d+) kB", text)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path, metavar="WORK", help="folder of large_rivals.sh")
    parser.add_argument("--size", default="large", help="name of the checkpoint in WORK/model")
    parser.add_argument("--output", type=Path, help="write OUTPUT.md and OUTPUT.json")
    args = parser.parse_args()
    model, packed = args.work / "model", args.work / "packed-int8"
    from_checkpoint = "checkpoint, int8", model / f"{args.size}.pt", model, 1, {"int8": True}
    rows = [("packed in 8 bits", packed, packed, beam, {}) for beam in (1, 5)]
    found = [measured(*row) for row in (*rows, from_checkpoint)]  # type: ignore[arg-type]
    table = "\n".join([HEAD, *(start.row() for start in found)])
    print(table)
    if args.output:
        command = machine.command("scripts.recipes.large_start", sys.argv[1:])
        title = "Start of a large model"
        write_table(args.output, title, command, table, [asdict(start) for start in found])


if __name__ == "__main__":
    main()
