"""What the stages of a session on a GPU share: what is asked, models, a row for what failed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairseq_aggdec.api.session import Session, generation_parser
from fairseq_aggdec.kernels.switches import VARIABLE
from fairseq_aggdec.records import machine
from scripts import random_models
from tests.strict.device.cases import Case
from tests.strict.device.strict_device import DEVICE, strict_device

Row = dict[str, Any]
Rows = Iterator[Row]

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "checkpoints" / "ua_gec"
PRECISIONS = {"fp32": [], "fp16": ["--fp16"], "bf16": ["--bf16"]}


class Stage(NamedTuple):
    """Gives rows of a table while it runs; ``weight`` is its share of the time that is left, beside those after it."""

    rows: Callable[[Plan], Rows]
    weight: int


@dataclass(frozen=True)
class Plan:
    """What is to be asked.

    Attributes:
        folder: for files that stages make. out: for what is found.
        rehearse: everything tiny, without a GPU.
        data, paths: a data folder and checkpoints to be audited beside the shipped model.
        end: when all stages must have ended, by ``time.monotonic``.
        faults: of a rehearsal, names of kernels and what is wrong with them.
    """

    folder: Path
    out: Path
    rehearse: bool = False
    data: str | None = None
    paths: tuple[str, ...] = ()
    end: float = float("inf")
    faults: tuple[tuple[str, str], ...] = ()

    def few(self, items: Sequence[Any], every: int = 9) -> list[Any]:
        """All of them, in a rehearsal one of so many."""
        return list(items[::every] if self.rehearse else items)

    def cases(self, cases: Sequence[Case]) -> list[Case]:
        """All of them, in a rehearsal the first of every method."""
        first: dict[str, Case] = {}
        for case in cases:
            first.setdefault(case.decoding, case)
        return list(first.values() if self.rehearse else cases)

    def sentences(self, batch_size: int, least: int = 12) -> int:
        """How many are timed in batches of a size."""
        return 4 if self.rehearse else max(least, batch_size)

    @contextmanager
    def device(self) -> Iterator[torch.device]:
        """A GPU, in a rehearsal the strict device."""
        if not self.rehearse:
            yield torch.device("cuda", torch.cuda.current_device())
            return
        with strict_device():
            yield DEVICE

    def session(self, arguments: Sequence[str], *more: str) -> Session:
        cpu = ["--cpu"] if self.rehearse else []
        session = Session(generation_parser(None), [*arguments, *cpu, *more])
        if not self.rehearse and not session.cuda:
            raise RuntimeError("PyTorch finds no GPU")
        return session

    def models(self) -> Iterator[tuple[str, list[str]]]:
        """Name and arguments of every model that is audited."""
        yield "shipped", shipped(self.folder)
        for path in self.paths:
            yield Path(path).stem, [str(self.data), "--path", path, "--gen-subset", "test"]


def tried(work: Callable[[], Row], **names: Any) -> Row:
    """A row of what ``work`` found, or of why it found nothing: one case that fails is no end of a stage."""
    try:
        return names | work()
    except Exception as error:
        return names | {"error": f"{type(error).__name__}: {error}"[:300]}


def shipped(folder: Path) -> list[str]:
    """The shipped model and its sample in subwords; fairseq's arguments for them."""
    import sentencepiece  # not needed elsewhere in a check

    data = folder / "shipped"
    text = (
        data
        / f"{random_models.SPLIT}.{random_models.SOURCE}-{random_models.TARGET}.{random_models.SOURCE}"
    )
    if not text.exists():
        data.mkdir(parents=True, exist_ok=True)
        for side, name in (
            (random_models.SOURCE, "dict.src.txt"),
            (random_models.TARGET, "dict.tgt.txt"),
        ):
            shutil.copy(SHIPPED / name, data / f"dict.{side}.txt")
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(SHIPPED / "spm.model"))
        lines = (SHIPPED / "sample.src").read_text(encoding="utf-8").splitlines()
        encoded = pieces.encode(lines, out_type=str)
        text.write_text("".join(" ".join(line) + "\n" for line in encoded), encoding="utf-8")
    return random_models.data_arguments(data, SHIPPED / "checkpoint.pt")


def versions(plan: Plan) -> Rows:
    """Machine, driver and packages."""
    yield {"what": "machine", "is": machine.sentence(machine.describe())}
    yield {"what": VARIABLE, "is": os.environ.get(VARIABLE, "not set")}
    yield {"what": "CUDA, cuDNN", "is": f"{torch.version.cuda}, {torch.backends.cudnn.version()}"}
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        yield {"what": "GPU memory, GiB", "is": f"{found.total_memory / 2**30:.0f}"}
        yield {"what": "compute capability", "is": f"{found.major}.{found.minor}"}
