"""The folder that distillation writes: nothing in it is replaced that distillation did not write.

OUTPUT/shards/                   what the teacher wrote, and ``merged.json``: the files that merging made in OUTPUT
OUTPUT/merge.3f2a...partial/     an attempt to make the data folder
OUTPUT/...                       the data folder; its summary comes last: where it is, the folder is whole

Attempts may have other contents (other filters). So that files of two of them cannot mix, all that an attempt puts in
place is moved out of its own folder, and the next attempt takes that folder away first: one move is before, or fails.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from fairseq_aggdec.distill.distillation import DistillationError
from fairseq_aggdec.distill.distilled_folder import TEXT
from fairseq_aggdec.jobs.claims import LostError
from fairseq_aggdec.jobs.job import sync

SHARDS, SUMMARY = "shards", "distillation.json"
PARTIALS = "merge*.partial"
MERGED = "merged.json"


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
    found = [path.name for path in output.iterdir()] if output.exists() else []
    foreign = sorted(n for n in found if n != SHARDS and not fnmatch(n, PARTIALS))
    if any((output / SHARDS).glob("*.*-of-*.jsonl")):
        raise DistillationError(
            f"--output {output} was begun by an earlier version, with as many shards as processes: name a new folder"
        )
    if foreign and not any((output / SHARDS).glob("*.job.json")):
        raise DistillationError(
            f"--output {output} holds files that distillation did not write ({_some(foreign)}): name a new folder"
        )


def fence(output: Path) -> None:
    """Takes away the folders of earlier attempts, for who holds the claim on merging.

    Whoever made them is dead, or stood still for longer than a lease and has nothing to move when it goes on.

    Raises:
        DistillationError: one of them, or the folder of the texts, is a link to another place.
    """
    found = list(output.glob(PARTIALS))
    for path in [*found, output / TEXT]:
        if path.is_symlink():
            raise DistillationError(
                f"{path} is a symbolic link, and what it leads to is not distillation's: remove the link"
            )
    for path in found:
        # Under another name first: a maker who goes on adds nothing to a folder that is being removed.
        removed = _own_path(output)
        with suppress(FileNotFoundError):  # its maker has removed it just now
            path.rename(removed)
            shutil.rmtree(removed)


def _own_path(output: Path) -> Path:
    return output / f"merge.{uuid.uuid4().hex}.partial"


@contextmanager
def attempt(output: Path, holds: Callable[[], bool]) -> Iterator[Path]:
    """An empty folder to make the data folder in, gone at the end. Call :func:`fence` before.

    Args:
        holds: whether the claim on merging is still held. It is asked when the folder is there: the next holder then
            finds it.

    Raises:
        LostError: the claim is not held.
    """
    partial = _own_path(output)
    try:
        (partial / TEXT).mkdir(parents=True)
        if not holds():
            raise LostError(f"another process makes {output}")
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def take_over(partial: Path, output: Path) -> None:
    """Moves all files from ``partial`` to ``output``, the summary last.

    A list of what is moved is on disk before the first file is: after a kill these may be replaced, others never.

    Raises:
        DistillationError: a file of the same name is there that merging did not make; nothing was moved.
        FileNotFoundError: another attempt has begun meanwhile.
    """
    names = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file())
    own = _merged(output)
    foreign = [name for name in names if name not in own and os.path.lexists(output / name)]
    if foreign:
        raise DistillationError(
            f"{output} holds files that distillation did not write and would replace ({_some(foreign)}): move them away"
        )
    for name in names:
        sync(partial / name)
    _remember(partial, output, own | set(names))
    with suppress(FileNotFoundError):  # there was none
        (output / SUMMARY).rename(partial / f"{SUMMARY}.before")
    for name in sorted(names, key=lambda name: name == SUMMARY):
        target = output / name
        target.parent.mkdir(exist_ok=True)
        (partial / name).replace(target)


def _merged(output: Path) -> set[str]:
    path = output / SHARDS / MERGED
    try:
        return set(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return set()
    except (TypeError, ValueError):
        raise DistillationError(
            f"{path} is not what belongs there: delete it and the files that merging made in {output}"
        ) from None


def _remember(partial: Path, output: Path, names: Iterable[str]) -> None:
    written = partial / MERGED
    text = json.dumps(sorted(names), indent=1, ensure_ascii=False)
    written.write_text(text, encoding="utf-8")
    sync(written)
    written.replace(output / SHARDS / MERGED)


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")
