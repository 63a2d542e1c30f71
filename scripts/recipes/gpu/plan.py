"""What a profile is made of: jobs, stages, and where things lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
AGGDEC = "fairseq_aggdec.cli.main"


class Job(NamedTuple):
    """A process: ``python -m MODULE ARGUMENTS``.

    Attributes:
        name: of its log, and of what it writes.
        ended: a file that says that it ended well and need not run again; None: it always runs.
        under: a program that runs it, with its options.
        trains: it is fairseq-train, which is told when to stop.
    """

    name: str
    module: str
    arguments: Sequence[str]
    ended: Path | None = None
    under: Sequence[str] = ()
    trains: bool = False


class MissingError(Exception):
    """What a stage needs is not there; the message names it."""


class Stage(NamedTuple):
    """Jobs that run side by side.

    Attributes:
        weight: its share of the time that is left, beside the stages after it.
        jobs: made when the stage begins, from its seconds: they may read what former ones left, or raise
            :class:`MissingError`.
    """

    name: str
    weight: float
    jobs: Callable[[float], Sequence[Job]]


@dataclass(frozen=True)
class Plan:
    """Where things lie.

    Attributes:
        out: of logs and results. work: of models, which later runs keep.
        rehearse: everything tiny, without a GPU.
        data: binarised. path: a model of the user's to audit.
    """

    out: Path
    work: Path
    rehearse: bool
    data: Path
    path: str | None = None

    @property
    def device(self) -> list[str]:
        return ["--cpu"] if self.rehearse else []

    @property
    def half(self) -> list[str]:
        return [*self.device] if self.rehearse else ["--fp16"]

    def log(self, name: str) -> Path:
        """What a job printed."""
        return self.out / f"{name}.log"

    def measured(self, name: str, module: str, *arguments: str) -> Job:
        """A job that takes ``--output`` and writes OUT/NAME.json and .md."""
        output = self.out / name
        return Job(
            name,
            module,
            [*arguments, "--output", str(output)],
            output.with_name(f"{name}.done"),
        )

    def bench(self, name: str, *arguments: str) -> Job:
        return self.measured(name, AGGDEC, "bench", *arguments)
