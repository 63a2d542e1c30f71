"""Refusals of files that a command line names, before anything heavy is imported: a word wrong is told at once."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairseq_aggdec.startup.installing import refuse_published


def refuse_missing(checkpoints: Iterable[str | os.PathLike[str]]) -> None:
    """Raises ``FileNotFoundError`` for a checkpoint, or folder of packed weights, that is not there."""
    for one in checkpoints:
        if not os.path.exists(one):
            raise FileNotFoundError(f"Checkpoint {os.fspath(one)} does not exist.")


def refuse_taken(output: Path, what: str = "folder") -> None:
    """Ends with a sentence where a new file or folder has the name of one that is there."""
    if output.exists():
        raise SystemExit(f"error: {output} exists: name a new {what}")


def split(path: str) -> list[str]:
    """The checkpoints of ``--path``, which ``:`` joins; those of another machine (``s3://``) are left out."""
    return [] if "://" in path else path.split(os.pathsep)


def refuse_no_model(path: str) -> None:
    """Refuses what cannot be a model of ``--path``.

    Raises:
        FileNotFoundError, ValueError: a checkpoint is not there, or is one of Hugging Face.
    """
    for one in split(path):
        refuse_published(one)
    refuse_missing(split(path))


def given_path(arguments: Sequence[str]) -> str | None:
    """Finds ``--path`` in a command line of many other options; None: it is not there."""
    words = [word.partition("=")[::2] for word in arguments]
    values = [
        value or following[0]
        for (word, value), following in zip(words, [*words[1:], ("", "")], strict=True)
        if word == "--path"
    ]
    return values[-1] if values else None
