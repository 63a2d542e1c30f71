"""Bulk translation at scale: kills at random moments, changing numbers of workers, memory; a tiny random model.

    python -m scripts.bulk_kills --lines 1000000 --kills 100 --output docs/results/bulk-kills

1. A text of --small lines by one undisturbed worker: its peak memory.
2. A text of --lines lines by one undisturbed worker: its peak memory, and the output to compare with.
3. The same text by one, two and three workers in turn, of which one after the other is killed at a random moment,
   the last ones while the output is put together; then by whoever is left. The bytes must be the same.

With --two instead: the seconds of one worker and of two (bar: 1.8 times as fast).

Prints and writes a table. It goes on where it was killed itself: what is in --work is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fairseq_aggdec.records import machine
from scripts import random_models
from tests.random_models import WORDS, make_dictionary

SMALL_MODEL = "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-layers 1 --decoder-layers 1"
SMALL_MODEL += " --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2"
SMALL_MODEL += " --decoder-attention-heads 2 --max-source-positions 40 --max-target-positions 40"
OPTIONS = "--cpu --decoding greedy --beam 1 --max-len-b 8 --batch-size 500"


def write_text(path: Path, lines: int) -> None:
    if path.exists():
        return
    generator = random.Random(lines)
    words = [f"w{number}" for number in range(WORDS)]
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        for _ in range(lines):
            file.write(" ".join(generator.choices(words, k=generator.randint(1, 8))) + "\n")
    partial.rename(path)


def write_model(folder: Path) -> None:
    for language in (random_models.SOURCE, random_models.TARGET):
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    if not (folder / "model.pt").exists():
        random_models.write_checkpoint(
            folder / "model.pt", folder, "transformer", *SMALL_MODEL.split()
        )


def start(args: argparse.Namespace, source: Path, target: Path) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from fairseq_aggdec.cli.fairseq_commands import generate; sys.exit(generate())"
    )
    sides = ["--source-lang", random_models.SOURCE, "--target-lang", random_models.TARGET]
    given = [args.work, "--path", args.work / "model.pt", *OPTIONS.split(), *sides]
    given += ["--shard-size", args.shard_size, "--input-file", source, "--output-file", target]
    log = (args.work / f"{target.name}.log").open("ab")
    return subprocess.Popen([sys.executable, "-c", code, *map(str, given)], stdout=log, stderr=log)


def undisturbed(args: argparse.Namespace, source: Path, target: Path) -> tuple[int, float]:
    """Peak of the memory in KiB and CPU seconds of one worker; those of an earlier run where the output is there."""
    kept = args.work / f"{target.name}.measured"
    if not kept.exists():
        process = start(args, source, target)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"error: a worker failed, see {args.work / target.name}.log")
        kept.write_text(f"{usage.ru_maxrss} {usage.ru_utime + usage.ru_stime:.1f}")
    memory, seconds = kept.read_text().split()
    return int(memory), float(seconds)


def disturbed(args: argparse.Namespace, source: Path, target: Path) -> int:
    """Translates with kills; how many there were, those of an earlier run of this tool included."""
    kept = Path(f"{target}.kills")
    killed = int(kept.read_text()) if kept.exists() else 0
    generator, rounds = random.Random(args.seed + killed), 0
    parts, shards = Path(f"{target}.parts"), -(-args.lines // args.shard_size)
    while killed < args.kills and not target.exists():
        workers = [start(args, source, target) for _ in range(1 + rounds % 3)]
        done = len(list(parts.glob("*.shard")))
        wanted = done + generator.uniform(0, 3 * shards / args.kills)
        late = killed >= 0.9 * args.kills or wanted >= shards  # while it is put together
        while any(worker.poll() is None for worker in workers):
            time.sleep(generator.uniform(0.0, 0.02))
            if list(parts.glob("output.*.partial")):
                break
            if not late and len(list(parts.glob("*.shard"))) >= wanted:
                break
        for worker in workers:
            killed += worker.poll() is None
            worker.kill()
            worker.wait()
        kept.write_text(str(killed))
        rounds += 1
    for worker in [start(args, source, target) for _ in range(2)]:
        if worker.wait():
            raise SystemExit(f"error: a worker failed, see {args.work / target.name}.log")
    return killed


def two_workers(args: argparse.Namespace, source: Path) -> float:
    """How many times faster two workers of one thread each translate a text than one, their starts included."""
    os.environ["OMP_NUM_THREADS"] = "1"
    seconds = []
    for count in (1, 2):
        target = args.work / f"{args.lines}.by-{count}"
        shutil.rmtree(f"{target}.parts", ignore_errors=True)
        target.unlink(missing_ok=True)
        began = time.monotonic()
        workers = [start(args, source, target) for _ in range(count)]
        statuses = [worker.wait() for worker in workers]
        if any(statuses):
            raise SystemExit(f"error: a worker failed, see {args.work / target.name}.log")
        seconds.append(time.monotonic() - began)
        print(f"{args.lines:,} lines, workers: {count}, seconds: {seconds[-1]:.1f}")
    print(f"Two workers are {seconds[0] / seconds[1]:.2f} times as fast as one.")
    return seconds[0] / seconds[1]


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--shard-size", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--two",
        action="store_true",
        help="nothing else: how much faster two workers are than one, on a quiet machine of two cores or more",
    )
    parser.add_argument("--work", type=Path, default=Path("work/bulk-kills"))
    parser.add_argument("--output", type=Path, help="result without its ending")
    args = parser.parse_args(arguments)
    args.work.mkdir(parents=True, exist_ok=True)
    write_model(args.work)
    if args.two:
        source = args.work / f"{args.lines}.in"
        write_text(source, args.lines)
        return 0 if two_workers(args, source) >= 1.8 else 1
    table = [
        "| lines | workers | kills | peak memory, MiB | CPU s | output |",
        "|---|---|---|---|---|---|",
    ]
    peaks = []
    for lines in (args.small, args.lines):
        source, target = args.work / f"{lines}.in", args.work / f"{lines}.out"
        write_text(source, lines)
        memory, seconds = undisturbed(args, source, target)
        peaks.append(memory)
        table.append(
            f"| {lines:,} | 1 | 0 | {memory / 1024:.0f} | {seconds:.0f} | {digest(target)[:12]} |"
        )
    killed_target = args.work / f"{args.lines}.killed"
    killed = disturbed(args, source, killed_target)
    same = digest(killed_target) == digest(target)
    lines_out = sum(1 for _ in killed_target.open("rb"))
    table.append(f"| {args.lines:,} | 1 to 3 | {killed} | | | {digest(killed_target)[:12]} |")
    verdict = (
        f"Same bytes: {'yes' if same and lines_out == args.lines else 'NO'}. "
        f"Peak memory of {args.lines:,} lines over that of {args.small:,}: {peaks[1] / peaks[0]:.2f}."
    )
    page = "\n".join(
        [*table, "", verdict, "", machine.command("scripts.bulk_kills", sys.argv[1:]), ""]
    )
    print(page)
    if args.output:
        args.output.with_suffix(".md").write_text(f"# Bulk translation, killed\n\n{page}")
    return 0 if same and lines_out == args.lines and peaks[1] < 1.3 * peaks[0] else 1


if __name__ == "__main__":
    sys.exit(main())
