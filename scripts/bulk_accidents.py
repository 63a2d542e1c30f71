"""Bulk work and accidents: after each of them, are all lines there, once and unchanged? Tiny random models on a CPU.

    python -m scripts.bulk_accidents --accidents 200 --output docs/results/bulk-accidents

Each accident is one job (a plain, .gz, .zst or JSON-lines text, or a distillation) that one to three workers do.
Something happens to it, the same command is given again as a user would, and the result is compared with that of an
undisturbed job (``KINDS``). Seed and number of an accident say what happens: --only repeats single ones.
A run goes on where it was killed itself: what is in --work is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # workers are forked, which PyTorch's threads do not survive

from fairseq_aggdec.records import machine, results
from scripts.bulk_jobs import FORMATS, LEASE, LINES, PACK, Job, prepare


@dataclass
class Found:
    """What an accident did.

    Attributes:
        number, kind, format: of the accident.
        struck: it came before the job was done.
        lost, doubled, corrupted: lines of the result, or of what stood under its name at any time.
        wrong: everything else that should not be: an error where there was none to expect, a traceback, files left.
    """

    number: int
    kind: str
    format: str
    struck: bool = False
    lost: int = 0
    doubled: int = 0
    corrupted: int = 0
    wrong: list[str] = field(default_factory=list)


def compare(job: Job, expected: list[bytes], found: Found) -> bool:
    """Counts what differs; False: there is no result."""
    lines = job.lines()
    if lines is None or lines == expected:
        return lines is not None
    here, wanted = Counter(lines), Counter(expected)
    found.lost += max(0, len(expected) - len(lines))
    found.doubled += sum((here & Counter(dict.fromkeys(wanted, 1 << 30)) - wanted).values())
    found.corrupted += sum(one != other for one, other in zip(lines, expected, strict=False))
    return True


def finish(job: Job, expected: list[bytes], found: Found, workers: int = 1) -> None:
    """The same command once more; then all must be there."""
    for _ in range(workers):
        job.start()
    if any(statuses := job.end()):
        found.wrong.append(f"statuses {statuses} at the end")
    if not compare(job, expected, found):
        found.wrong.append("no result")
        found.lost += len(expected)
    else:
        found.wrong += [f"left: {name}" for name in job.left()]
    with suppress(FileNotFoundError):
        if "Traceback" in job.log.read_text(errors="replace"):
            found.wrong.append("a traceback")


# -- accidents


def strike(
    job: Job, expected: list[bytes], found: Found, generator: random.Random, number: int
) -> None:
    """One to three rounds of workers, all of which get a signal at a random moment, by themselves or by the clock."""
    for _ in range(generator.randint(1, 3)):
        processes = [
            job.start(job.moment(generator), number) for _ in range(generator.randint(1, 3))
        ]
        if generator.random() < 0.3:
            time.sleep(generator.uniform(0, 1.5))
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid or 0, number)
        statuses = job.end()
        found.struck |= any(statuses)
        if unexpected := [s for s in statuses if s not in (0, -number, 128 + number)]:
            found.wrong.append(f"statuses {unexpected} after a signal")
        compare(job, expected, found)


def kill(job: Job, expected: list[bytes], found: Found, generator: random.Random) -> None:
    """SIGKILL."""
    strike(job, expected, found, generator, signal.SIGKILL)


def terminate(job: Job, expected: list[bytes], found: Found, generator: random.Random) -> None:
    """SIGTERM."""
    strike(job, expected, found, generator, signal.SIGTERM)


def pause(job: Job, expected: list[bytes], found: Found, generator: random.Random) -> None:
    """SIGSTOP of a worker, SIGCONT when others have done its work, or are at it; half of the times near the end."""
    when = job.moment(generator, earliest=generator.choice([0.0, 0.67]))
    paused = job.start(when, signal.SIGSTOP)
    while paused.is_alive() and not is_stopped(paused.pid or 0):
        time.sleep(0.01)
    found.struck = paused.is_alive()
    others = [job.start() for _ in range(generator.randint(1, 2))]
    if generator.random() < 0.5:
        for other in others:
            other.join(120)
        compare(job, expected, found)
    else:
        time.sleep(LEASE + generator.uniform(0, 1.5))
    with suppress(ProcessLookupError):
        os.kill(paused.pid or 0, signal.SIGCONT)
    if any(statuses := job.end()):
        found.wrong.append(f"statuses {statuses} after a pause")
    compare(job, expected, found)


def is_stopped(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def fill(job: Job, expected: list[bytes], found: Found, generator: random.Random) -> None:
    """A full disk: a small file system in memory where one can be mounted, else a limit to the size of files."""
    pages = generator.randint(2, 26 if job.distils else 15)
    with small_disk(job, pages << 12) as mounted:
        for _ in range(generator.randint(1, 2)):
            job.start(disk=0 if mounted else 100 * pages)
        found.struck = any(job.end())
        compare(job, expected, found)
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=64m", str(job.folder)], check=True)
        finish(job, expected, found)


@contextmanager
def small_disk(job: Job, size: int) -> Iterator[bool]:
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(job.folder)],
        capture_output=True,
    )
    try:
        yield made.returncode == 0
    finally:
        if made.returncode == 0:
            subprocess.run(["umount", "-l", str(job.folder)], check=True)


def cut_input(job: Job, expected: list[bytes], found: Found, generator: random.Random) -> None:
    """An input that is cut at a random byte (if compressed) or has another byte: refused, or right all the same."""
    whole = job.source.read_bytes()
    content = bytearray(whole)
    if job.packed in PACK and generator.random() < 0.7:
        del content[generator.randrange(len(content)) :]
    else:
        content[generator.randrange(len(content))] ^= 0x80  # no plain text has such a byte
    job.source.write_bytes(content)
    job.start()
    found.struck = any(job.end())
    compare(job, expected, found)
    if not found.struck and job.lines() != expected:
        found.wrong.append("a damaged input was taken")
    job.source.write_bytes(whole)


def spoil(job: Job, expected: list[bytes], found: Found, generator: random.Random) -> None:
    """A finished shard is cut or has another byte: its name is said, it is deleted, and made anew."""
    job.start(job.moment(generator, earliest=0.2), signal.SIGKILL)
    job.end()
    if not (shards := sorted(job.parts.glob("*.shard"))):
        return
    path = generator.choice(shards)
    content = bytearray(path.read_bytes())
    position = generator.randrange(len(content))
    if generator.random() < 0.5:
        del content[position:]
    else:
        content[position] ^= 1 << generator.randrange(8)
    path.write_bytes(content)
    job.start()
    found.struck = any(job.end())
    compare(job, expected, found)
    if found.struck and path.name not in job.log.read_text():
        found.wrong.append("the damaged shard is not named")
    path.unlink(missing_ok=True)


Accident = Callable[[Job, list[bytes], Found, random.Random], None]
KINDS: dict[str, Accident] = {
    "kill -9": kill,
    "SIGTERM": terminate,
    "pause beyond the lease": pause,
    "full disk": fill,
    "damaged input": cut_input,
    "damaged shard": spoil,
}
# A data set is not compressed, and its bytes are read before the job begins.
PLAN = [(k, f) for k in KINDS for f in FORMATS if (k, f) != ("damaged input", "distillation")]


def run(args: argparse.Namespace, number: int, expected: dict[str, list[bytes]]) -> Found:
    kind, format = PLAN[number % len(PLAN)]
    generator = random.Random(f"{args.seed} {number}")
    job, found = Job(args.work, format), Found(number, kind, format)
    KINDS[kind](job, expected[format], found, generator)
    if kind != "full disk":
        finish(job, expected[format], found, generator.randint(1, 2))
    if not (found.lost or found.doubled or found.corrupted or found.wrong):
        return found
    job.keep(str(number))
    return found


def page(args: argparse.Namespace, founds: Sequence[Found]) -> str:
    rows = [
        "| accident | jobs | struck | lost | doubled | corrupted | other faults |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in [*KINDS, "all"]:
        own = [found for found in founds if kind in (found.kind, "all")]
        counts = [
            sum(getattr(one, name) for one in own)
            for name in ("struck", "lost", "doubled", "corrupted")
        ]
        cells = [kind, len(own), *counts, sum(map(len, (one.wrong for one in own)))]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    formats = Counter(found.format for found in founds)
    jobs = ", ".join(f"{formats[name]} {name}" for name in FORMATS)
    return "\n".join(
        [
            "# Bulk work and accidents\n",
            *rows,
            "\nStruck: it came before the job was done. Lost, doubled, corrupted: lines of results, at any time.",
            f"\nJobs: {jobs}; {LINES} lines each, seed {args.seed}.",
            f"\n{machine.sentence(machine.describe())}\n\n{machine.command('scripts.bulk_accidents', sys.argv[1:])}\n",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--accidents", type=int, default=len(PLAN))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these, once more")
    parser.add_argument("--work", type=Path, default=Path("work/bulk-accidents"))
    parser.add_argument("--output", type=Path, help="result without its ending")
    args = parser.parse_args(arguments)
    args.work = args.work.resolve()
    expected = prepare(args.work)
    kept = args.work / f"seed-{args.seed}.jsonl"
    known = (
        [Found(**json.loads(line)) for line in kept.read_text().splitlines()]
        if kept.exists()
        else []
    )
    by_number = {} if args.only else {found.number: found for found in known}
    for number in args.only or range(args.accidents):
        if number not in by_number:
            by_number[number] = found = run(args, number, expected)
            with kept.open("a") as file:
                file.write(json.dumps(asdict(found)) + "\n")
            print(json.dumps(asdict(found)), flush=True)
    founds = [by_number[number] for number in sorted(by_number)]
    print(text := page(args, founds))
    if args.output:
        result = {
            "seed": args.seed,
            "command": machine.command("scripts.bulk_accidents", sys.argv[1:]),
        }
        told = [{key: value for key, value in asdict(one).items() if value} for one in founds]
        result |= {"machine": machine.describe(), "accidents": told}
        results.write_text(results.named(args.output, ".json"), json.dumps(result, indent=1) + "\n")
        results.write_text(results.named(args.output, ".md"), text)
    return int(any(one.lost or one.doubled or one.corrupted or one.wrong for one in founds))


if __name__ == "__main__":
    sys.exit(main())
