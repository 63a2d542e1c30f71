"""The folder that distillation writes.

OUTPUT/shards/                   what the teacher wrote
OUTPUT/merge.3f2a...partial/     an attempt to make the data folder
OUTPUT/...                       the data folder; its summary comes last: where it is, the folder is whole
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from fairseq_aggdec.distill.distillation import DistillationError
from fairseq_aggdec.distill.distilled_folder import TEXT
from fairseq_aggdec.jobs.job import sync

SHARDS, SUMMARY = "shards", "distillation.json"
PARTIALS = "merge*.partial"


def check(output: Path, data: Path) -> None:
    """Refuses an output folder that is not distillation's own, before anything is decoded.

    A folder belongs to it when it is new or empty, or when a job was begun there.

    Raises:
        DistillationError: it is DATA, no folder, or holds files of somebody else.
    """
    if output.exists() and not output.is_dir():
        raise DistillationError(f"--output {output} is not a folder: name a new one")
    if output.exists() and data.exists() and output.samefile(data):
        raise DistillationError(
            f"--output {output} is DATA, whose training set would be lost: name a new folder"
        )
    names = [path.name for path in output.iterdir()] if output.exists() else []
    foreign = sorted(n for n in names if n != SHARDS and not fnmatch(n, PARTIALS))
    if foreign and not any((output / SHARDS).glob("*.job.json")):
        raise DistillationError(
            f"--output {output} holds files that distillation did not write ({_some(foreign)}): name a new folder"
        )


@contextmanager
def attempt(output: Path) -> Iterator[Path]:
    """A folder to make the data folder in, with one for texts, gone at the end; and so are those of earlier attempts,
    for who holds the claim on merging."""
    for path in output.glob(PARTIALS):
        shutil.rmtree(path)
    with tempfile.TemporaryDirectory(".partial", "merge.", output) as partial:
        (Path(partial) / TEXT).mkdir()
        yield Path(partial)


def take_over(partial: Path, output: Path) -> None:
    """Moves all files from ``partial`` to ``output``, the summary last."""
    files = [path for path in partial.rglob("*") if path.is_file()]
    for path in files:
        sync(path)
    with suppress(FileNotFoundError):  # there was none
        (output / SUMMARY).unlink()
    for path in sorted(files, key=lambda path: path.name == SUMMARY):
        target = output / path.relative_to(partial)
        target.parent.mkdir(exist_ok=True)
        path.replace(target)


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")
