"""Jobs of bulk work on tiny random models, and their workers, for ``bulk_accidents.py``."""

from __future__ import annotations

import copy
import gzip
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
import zstandard

from fairseq_aggdec.api import session
from fairseq_aggdec.bulk import command as translate_file
from fairseq_aggdec.cli import distill, fairseq_commands
from fairseq_aggdec.distill import distilled_folder
from scripts import random_models
from scripts.bulk_kills import OPTIONS, write_model
from tests.random_models import WORDS, make_dictionary

# Workers are forked from a process that knows the models' configurations: they start at once.
context = multiprocessing.get_context("fork")
LINES, SHARD, LEASE = 96, 8, 1  # sentences of a job and of a shard; seconds
FORMATS = ("plain", "gz", "zst", "jsonl.gz", "distillation")
EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir"}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda content: zstandard.ZstdCompressor(write_checksum=True).compress(content),
}
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.decompress,
    "zst": lambda content: zstandard.ZstdDecompressor().decompress(content, 1 << 24),
}


def in_worker(
    command: list[str], log: str, place: str, moment: int, number: int, disk: int
) -> None:
    """A worker.

    Args:
        command: its command line. log: file of what it prints.
        place, moment, number: it sends itself the signal ``number`` when it touches a file in ``place`` for the n-th
            time, ``moment``; 0: it does not.
        disk: bytes that a file may have; 0: any number.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)

    def reached(count: int) -> None:
        if count == moment:
            os.kill(os.getpid(), number)

    if number:
        watch(place, reached)
    if disk:
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, disk))
    sys.exit(main(command))


def main(command: list[str]) -> int | str | None:
    """Runs a command in this process; its status."""
    with mock.patch.object(sys, "argv", command):
        try:
            if command[0] == "distill":
                distill.main()
                return 0
            return fairseq_commands.generate()
        except SystemExit as ended:
            return ended.code


def watch(place: str, reached: Callable[[int], None]) -> None:
    """Calls ``reached`` with 1, 2 ... whenever this process touches a file in a place, from now on."""
    count = 0

    def touched(event: str, operands: tuple[object, ...]) -> None:
        nonlocal count
        if event in EVENTS and any(str(one).startswith(place) for one in operands[:2]):
            count += 1
            reached(count)

    sys.addaudithook(touched)


class Job:
    """A job in a folder of its own, always the same one, and its workers."""

    moments: ClassVar[
        dict[str, int]
    ] = {}  # format -> how often an undisturbed worker touches files

    def __init__(self, work: Path, format: str):
        self.work, self.folder, self.format = work, work / "job", format
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        ending = "" if format == "plain" else f".{format}"
        self.distils = format == "distillation"
        self.target = self.folder / ("distilled" if self.distils else f"out{ending}")
        self.packed = format.split(".")[-1]
        self.source = work / (f"in.{self.packed}" if self.packed in PACK else "in")
        shutil.copy(work / "texts" / self.source.name, self.source)
        self.log = work / "job.log"
        self.log.unlink(missing_ok=True)
        self.running: list[BaseProcess] = []

    def keep(self, name: str) -> None:
        """Puts what is left of a job that went wrong out of the way of the next one."""
        kept = self.work / "wrong" / name
        shutil.copytree(self.folder, kept, dirs_exist_ok=True)
        shutil.copy(self.log, kept)

    def moment(self, generator: random.Random, earliest: float = 0.0) -> int:
        """A random one of all the times when a worker touches a file."""
        last = Job.moments[self.format]
        return generator.randint(1 + int(earliest * last), last)

    @property
    def parts(self) -> Path:
        return self.target / "shards" if self.distils else Path(f"{self.target}.parts")

    def command(self) -> list[str]:
        sides = ["--source-lang", random_models.SOURCE, "--target-lang", random_models.TARGET]
        given = ["--path", self.work / "model.pt", *OPTIONS.split(), *sides, "--lease", LEASE]
        given += ["--shard-size", SHARD, "--batch-size", SHARD]
        if self.distils:
            more = ["--output", self.target, "--bleu-tokenize", "none", "--keep-cut"]
            return list(map(str, ["distill", self.work / "data", *given, *more]))
        files = ["--input-file", self.source, "--output-file", self.target]
        return list(map(str, ["aggdec-generate", self.work, *given, *files]))

    def start(self, moment: int = 0, number: int = 0, disk: int = 0) -> BaseProcess:
        given = (self.command(), str(self.log), str(self.folder), moment, number, disk)
        process = context.Process(target=in_worker, args=given)
        process.start()
        self.running.append(process)
        return process

    def end(self) -> list[int]:
        """Waits for all workers; their statuses."""
        statuses = []
        for process in self.running:
            process.join(120)
            if process.is_alive():
                process.kill()
                process.join()
            statuses.append(process.exitcode or 0)
        self.running = []
        return statuses

    def lines(self) -> list[bytes] | None:
        """The lines of the result; of a data folder, all its files. None: it is not there."""
        if not self.distils:
            if not os.path.lexists(self.target):
                return None
            return unpacked(self.target.read_bytes(), self.packed).split(b"\n")
        if not (self.target / "distillation.json").exists():
            return None
        files = [path for path in self.target.rglob("*") if path.is_file()]
        made = [p for p in files if p.parent != self.parts and p.name != "distillation.json"]
        texts = {p.relative_to(self.target): p.read_bytes() for p in sorted(made)}
        return [
            str(name).encode() + b" " + line for name in texts for line in texts[name].split(b"\n")
        ]

    def left(self) -> list[str]:
        """Files that only a job at work has."""
        made = [self.parts, self.target] if self.distils else [self.parts]
        found = [path.name for folder in made for path in folder.iterdir()]
        return [name for name in found if name.endswith((".claim", ".partial"))]


def unpacked(content: bytes, packed: str) -> bytes:
    """The content, or what is left of it, so that lines can be counted."""
    try:
        return UNPACK[packed](content) if packed in UNPACK else content
    except (OSError, EOFError, zstandard.ZstdError):
        return b"damaged"


# -- the work-place


def remembered(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that returns a copy of what it returned before for the same command line."""
    known: dict[str, Any] = {}

    def recall(args: Any) -> Any:
        key = repr(sorted(vars(args).items()))
        if key not in known:
            known[key] = function(args)
        return copy.deepcopy(known[key])

    return recall


def prepare(work: Path) -> dict[str, list[bytes]]:
    """Model, texts and data; does undisturbed jobs in this process, and returns their lines by format.

    To read a command line takes fairseq a second: here, and in the processes that are forked from here, this is done
    once for each.
    """
    torch.set_num_threads(1)
    recall = remembered(translate_file.convert_namespace_to_omegaconf)
    for module in (translate_file, distill, session):
        mock.patch.object(module, "convert_namespace_to_omegaconf", recall).start()
    write_inputs(work)
    expected, touched = {}, Counter[str]()
    place = str(work / "job")
    watch(place, lambda _: touched.update(["now"]))
    for format in FORMATS:
        job = Job(work, format)
        touched.clear()
        with quietly(job.log):
            status = main(job.command())
        if status or (lines := job.lines()) is None:
            raise SystemExit(f"error: an undisturbed job failed, see {job.log}")
        expected[format], Job.moments[format] = lines, touched["now"]
    return expected


def write_inputs(work: Path) -> None:
    texts, data = work / "texts", work / "data"
    texts.mkdir(parents=True, exist_ok=True)
    with quietly(work / "job.log"):
        write_model(work)
    generator, dictionary = random.Random(7), make_dictionary()
    rows = [generator.choices(range(WORDS), k=generator.randint(1, 8)) for _ in range(LINES)]
    text = "".join(" ".join(f"w{word}" for word in row) + "\n" for row in rows).encode()
    (texts / "in").write_bytes(text)
    for ending, pack in PACK.items():
        (texts / f"in.{ending}").write_bytes(pack(text))
    if data.exists():
        return
    (data / distilled_folder.TEXT).mkdir(parents=True)
    ids = [torch.tensor([*(word + dictionary.nspecial for word in row), 2]) for row in rows]
    for language in (random_models.SOURCE, random_models.TARGET):
        dictionary.save(str(data / f"dict.{language}.txt"))
        for subset, count in (("train", LINES), ("valid", 4)):
            name = f"{subset}.{random_models.SOURCE}-{random_models.TARGET}"
            distilled_folder.write_side(data, name, language, dictionary, ids[:count])


@contextmanager
def quietly(log: Path) -> Iterator[None]:
    """What this process prints goes to a file."""
    kept = [os.dup(stream) for stream in (1, 2)]
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        yield
    finally:
        for stream, before in zip((1, 2), kept, strict=True):
            os.dup2(before, stream)
            os.close(before)
