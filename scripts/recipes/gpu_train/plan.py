"""What a training on a lent GPU is made of: sizes, processes, stages, and where things lie."""

from __future__ import annotations

import json
import math
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq.data import data_utils

import fairseq_aggdec
from fairseq_aggdec.distill.drafter_training import KINDS, DrafterTraining, run_module

Row = dict[str, Any]

RAW = "raw"  # the data as they are

REHEARSED = 2  # updates of a rehearsal
LONGEST = 100000  # updates of a training that only the clock ends
EPOCH = 900  # updates: the ends of short epochs, each with a new loader, would take longer than the updates
# What `aggdec train-drafter` says of a schedule that ends at an update; here the clock ends it.
SCHEDULE = ("--lr-scheduler", "--total-num-update", "--warmup-updates", "--max-update")


@dataclass(frozen=True)
class Size:
    """A model and how it is trained.

    Attributes:
        max_tokens: of a minibatch.
    """

    layers: int
    width: int
    inner: int
    heads: int
    dropout: float
    lr: float
    max_tokens: int

    def flags(self, decoder_layers: int | None = None) -> list[str]:
        """The architecture, as options of fairseq-train."""
        found = [
            f"--encoder-layers={self.layers}",
            f"--decoder-layers={decoder_layers or self.layers}",
        ]
        for side in ("encoder", "decoder"):
            found += [f"--{side}-embed-dim={self.width}", f"--{side}-ffn-embed-dim={self.inner}"]
            found += [f"--{side}-attention-heads={self.heads}"]
        return [*found, "--share-all-embeddings", f"--dropout={self.dropout}"]


SIZES = {
    "base": Size(6, 512, 2048, 8, 0.3, 7e-4, 16384),
    "small": Size(3, 256, 1024, 4, 0.2, 1e-3, 16384),
    "toy": Size(1, 16, 16, 2, 0.0, 1e-3, 400),
}


@dataclass(frozen=True)
class Job:
    """A process: ``python -m MODULE ARGUMENTS``, with a folder of its own.

    Attributes:
        trains: it is fairseq-train, which is told when to stop.
    """

    name: str
    module: str
    arguments: Sequence[str]
    trains: bool = False


class MissingError(Exception):
    """What a stage reads has not been made; the message names it."""


@dataclass(frozen=True)
class Stage:
    """Jobs that run side by side, and the rows that they leave.

    Attributes:
        weight: its share of the time that is left, beside the stages after it.
        jobs: made when the stage begins, from its seconds: they may read what former ones left, or raise
            :class:`MissingError`.
        rows: made when it has ended, of what is there then.
    """

    name: str
    weight: float
    jobs: Callable[[float], Sequence[Job]]
    rows: Callable[[], Sequence[Row]]


@dataclass(frozen=True)
class Plan:
    """Where things lie, and how large they are.

    Attributes:
        data: binarised, with its test set. work: gets a folder for every job, which a second run keeps.
        rehearse: two updates of everything, on the CPU.
        subwords: the sentencepiece model of the data; None where there is none.
    """

    data: Path
    work: Path
    size: Size
    rehearse: bool = False
    subwords: Path | None = None
    languages: tuple[str, str] = field(default=("", ""))

    def __post_init__(self) -> None:
        found = data_utils.infer_language_pair(str(self.data))
        if None in found:
            raise SystemExit(f"error: --data {self.data} is no folder of fairseq-preprocess")
        object.__setattr__(self, "languages", found)

    def folder(self, name: str) -> Path:
        return self.work / name

    def log(self, name: str) -> Path:
        """What a job printed."""
        return self.work / f"{name}.log"

    def whole(self, name: str) -> Path:
        """A file that says that a job ended well."""
        return self.work / f"{name}.done"

    def checkpoint(self, name: str) -> Path:
        return self.folder(name) / "checkpoint_last.pt"

    @property
    def device(self) -> list[str]:
        return ["--cpu"] if self.rehearse else []

    # -- training

    def upsampled(self, name: str) -> Path:
        """A folder with the data of a job, its training set so often that an epoch has :data:`EPOCH` updates.

        The copies are links, which fairseq reads as parts of the set (train, train1, ...).
        """
        folder, data = self.folder(f"{name}-data"), self.source(name)
        if folder.exists():
            return folder
        partial = folder.with_name(f"{folder.name}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        pair = "-".join(self.languages)
        sides = [f"{pair}.{side}.{ending}" for side in self.languages for ending in ("bin", "idx")]
        for part in range(self.copies(data)):
            for side in sides:
                link(data / f"train.{side}", partial / f"train{part or ''}.{side}")
        for path in [*data.glob("dict.*.txt"), *data.glob("valid.*"), *data.glob("test.*")]:
            link(path, partial / path.name)
        partial.rename(folder)
        return folder

    def source(self, name: str) -> Path:
        """The data that a folder ``NAME-data`` is made of: those of the plan for ``raw``, else of a job that distilled.

        Raises:
            MissingError: it has not distilled all.
        """
        if name == RAW:
            return self.data
        distilled = self.folder(name)
        if not (distilled / "distillation.json").exists():
            raise MissingError(f"{name} has not ended")
        return distilled

    def copies(self, data: Path) -> int:
        """How often the training set is read in an epoch."""
        if self.rehearse:
            return 2
        path = data / f"train.{'-'.join(self.languages)}"
        sides = [data_utils.load_indexed_dataset(f"{path}.{x}", None) for x in self.languages]
        # Sizes are views of files that are closed with their data sets.
        longer = sum(map(max, *(side.sizes.tolist() for side in sides)))
        return max(1, math.ceil(EPOCH * self.size.max_tokens / max(1, longer)))

    def training(self, name: str, data: str, flags: Sequence[str], updates: int = LONGEST) -> Job:
        """fairseq-train, without anything that takes time or space beside training.

        Args:
            data: :data:`RAW`, or the job that distilled.
            flags: architecture, criterion and what differs from the others.
            updates: at most; schedules of criteria end with them.
        """
        source, target = self.languages
        common = [str(self.upsampled(data)), "--user-dir", fairseq_aggdec.__path__[0]]
        common += ["--task=translation_aggdec", "--source-lang", source, "--target-lang", target]
        common += ["--optimizer=adam", "--adam-betas=(0.9, 0.98)", "--clip-norm=1.0", "--seed=1"]
        return Job(
            name, "fairseq_cli.train", [*common, *flags, *self.ends(name, updates)], trains=True
        )

    def ends(self, name: str, updates: int) -> list[str]:
        """Options that stand last, so that they hold against those of ``aggdec train-drafter``."""
        flags = [f"--lr={self.size.lr}", "--lr-scheduler=inverse_sqrt", "--warmup-updates=400"]
        flags += [f"--max-tokens={self.size.max_tokens}", "--required-batch-size-multiple=1"]
        workers = 0 if self.rehearse else 2
        flags += ["--upsample-primary=1", f"--num-workers={workers}", "--disable-validation"]
        flags += ["--no-epoch-checkpoints", "--no-save-optimizer-state"]
        flags += ["--save-interval-updates=0", "--validate-interval-updates=0"]
        updates, interval = (REHEARSED, 1) if self.rehearse else (updates, 25)
        flags += ["--save-dir", str(self.folder(name)), "--log-format=json"]
        flags += [f"--max-update={updates}", f"--log-interval={interval}"]
        # Stock fairseq's --bf16 does not run on a CPU: the only option that a rehearsal has otherwise.
        return [*flags, "--cpu" if self.rehearse else "--bf16"]

    def trained(self, names: Sequence[str]) -> list[Row]:
        """What the logs of trainings say: updates, seconds, the last loss."""
        return [
            {"model": name} | last_logged(self.log(name))
            for name in names
            if self.log(name).exists()
        ]

    def drafter_flags(self, kind: str, verifier: Path, layers: int, block: int) -> list[str]:
        """Options of ``aggdec train-drafter`` for a drafter or heads, but those of its schedule."""
        assert kind in KINDS
        args = Namespace(
            data=self.data,
            path=verifier,
            output=self.work,
            kind=kind,
            layers=layers,
            block_size=block,
            max_update=LONGEST,
            patience=1,
            average=1,
            lr=self.size.lr,
            max_tokens=None,
            seed=1,
            cpu=self.rehearse,
            precision="fp32",
            distill_flags=["-s", self.languages[0], "-t", self.languages[1]],
            train_flags=[],
        )
        flags = DrafterTraining(args, run_module).training_flags()
        return [flag for flag in flags if flag.partition("=")[0] not in SCHEDULE]

    # -- decoding

    def read(self, path: Path) -> list[str]:
        """Data and model of everything that reads the test set."""
        return [str(self.data), "--path", str(path), "--gen-subset=test", *self.device]

    def generation(self, path: Path) -> list[str]:
        """The same and the lengths, for what decodes."""
        found = [*self.read(path), "--max-len-a=1.2", "--max-len-b=10"]
        return [*found, *(["--post-process=sentencepiece"] if self.subwords else [])]

    def distillation(self, name: str, path: Path) -> Job:
        """What a model writes greedily for the training set, as data."""
        source, target = self.languages
        flags = ["distill", str(self.data), "--output", str(self.folder(name)), "--path", str(path)]
        flags += ["--source-lang", source, "--target-lang", target, "--batch-size=256"]
        flags += [
            "--decoding=greedy",
            "--beam=1",
            "--keep-cut",
            "--max-len-a=1.2",
            "--max-len-b=10",
        ]
        return Job(name, "fairseq_aggdec.cli.main", [*flags, *self.device])

    def output(self, name: str) -> Path:
        """``--output`` of a job that measures."""
        return self.folder(name) / "result"

    def results(self, name: str) -> Any:
        """What it wrote."""
        path = self.output(name).with_suffix(".json")
        return json.loads(path.read_text(encoding="utf-8"))


def link(path: Path, place: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(path.resolve())


def last_logged(log: Path) -> Row:
    """Updates, seconds and loss of the last line that fairseq-train logged as JSON of training."""
    found: Row = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        # As fairseq formats it, or where something else has set up the log before.
        if match := re.search(r"\btrain_inner\b[ |:]+(\{.*\})$", line):
            one = json.loads(match[1])
            found = {
                "updates": int(one["num_updates"]),
                "seconds": float(one["wall"]),
                "loss": float(one["loss"]),
            }
    return found
