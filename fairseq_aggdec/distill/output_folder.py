"""The folder that distillation writes: nothing in it is replaced that distillation did not write.

OUTPUT/shards/           what the teacher wrote, and ``merged.json``: the files that merging made in OUTPUT
OUTPUT/merge.partial/    the data folder while it is being made
OUTPUT/...               the data folder; its summary comes last: where it is, the folder is whole
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fairseq_aggdec.distill.distillation import DistillationError
from fairseq_aggdec.distill.distilled_folder import TEXT

SHARDS, PARTIAL, SUMMARY = "shards", "merge.partial", "distillation.json"
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
    foreign = sorted(set(found) - {SHARDS, PARTIAL})
    if any((output / SHARDS).glob("*.*-of-*.jsonl")):
        raise DistillationError(
            f"--output {output} was begun by an earlier version, with as many shards as processes: name a new folder"
        )
    if foreign and not any((output / SHARDS).glob("*.job.json")):
        raise DistillationError(
            f"--output {output} holds files that distillation did not write ({_some(foreign)}): name a new folder"
        )


def make_partial(output: Path) -> Path:
    """An empty folder to make the data folder in.

    Raises:
        DistillationError: its name, or that of the texts, is a link to another place.
    """
    partial = output / PARTIAL
    for path in (partial, output / TEXT):
        if path.is_symlink():
            raise DistillationError(
                f"{path} is a symbolic link, and what it leads to is not distillation's: remove the link"
            )
    if partial.exists():
        shutil.rmtree(partial)
    (partial / TEXT).mkdir(parents=True)
    return partial


def take_over(partial: Path, output: Path) -> None:
    """Moves all files from ``partial`` to ``output``, the summary last, and removes ``partial``.

    A list of what is moved is on disk before the first file is: after a kill these may be replaced, others never.

    Raises:
        DistillationError: a file of the same name is there that merging did not make; nothing was moved.
    """
    names = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file())
    own = _merged(output)
    foreign = [name for name in names if name not in own and os.path.lexists(output / name)]
    if foreign:
        raise DistillationError(
            f"{output} holds files that distillation did not write and would replace ({_some(foreign)}): move them away"
        )
    _remember(output, own | set(names))
    (output / SUMMARY).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == SUMMARY):
        target = output / name
        target.parent.mkdir(exist_ok=True)
        (partial / name).replace(target)
    shutil.rmtree(partial)


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


def _remember(output: Path, names: Iterable[str]) -> None:
    path = output / SHARDS / MERGED
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(sorted(names), file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")
