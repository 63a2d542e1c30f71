"""A job: work cut into shards whose number no worker changes, done by as many workers as happen to be there.

    FOLDER/NAME.job.json             the *header*: what the results depend on, and the number of shards
    FOLDER/NAME.7-of-40.shard        a finished shard: a line of JSON that says what it is, and its *body*
    FOLDER/NAME.7-of-40.claim        somebody works on it, see ``claims.py``

A shard is a function of the header and its number: whoever makes it, and however often, its bytes are the same. It is
written aside and put in place when it is on disk. A kill costs each worker the shard it is at.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from fairseq_aggdec.jobs.claims import POLL, claim, turn

logger = logging.getLogger(__name__)

Header = Mapping[str, Any]
NOTES = "notes"  # the part of a header that may differ between two workers
LABELS = {"teacher": "teacher (--path)", "model": "model (--path)", "data": "DATA"}
REPORT = 10.0  # seconds between two reports


class BulkError(ValueError):
    """Files that do not fit together, or not to the command; the message is for the user."""


class UnfinishedError(BulkError):
    """Shards are still to be made, here or on another machine."""


class Job:
    """Work on a header and a number of shards.

    Args:
        folder: of all files; made by :meth:`begin`.
        name: of the files.
        header: what the results depend on; ``shards`` is their number, ``sentences`` that of all of them together,
            ``options`` what the user chose, by name, and ``notes`` what may differ.

    Attributes:
        digest: of all in the header but the notes; every shard names it.
    """

    def __init__(self, folder: Path, name: str, header: Header):
        self.folder, self.name, self.header = folder, name, header
        self.shards: int = header["shards"]
        counted = {key: value for key, value in header.items() if key != NOTES}
        self.digest = hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()

    def shard_path(self, number: int) -> Path:
        return self.folder / f"{self.name}.{number}-of-{self.shards}.shard"

    def begin(self) -> None:
        """Puts the header in place, or checks the one that is there.

        Raises:
            BulkError: the work was begun with something else.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = header_path(self.folder, self.name)
        with turn(self.folder, path.name, path.exists) as mine:
            if mine and not path.exists():
                write_durably(path, json.dumps(self.header).encode() + b"\n")
        check_header(str(path), read_header(path), self.header)

    def left(self) -> list[int]:
        """Numbers of the shards that are not there."""
        pattern = re.compile(re.escape(self.name) + rf"\.(\d+)-of-{self.shards}\.shard")
        made = {
            match[1]
            for entry in os.scandir(self.folder)
            if (match := pattern.fullmatch(entry.name))
        }
        return [number for number in range(self.shards) if str(number) not in made]

    def work(
        self, make: Callable[[int], bytes], finished: Callable[[], bool] = lambda: False
    ) -> None:
        """Claims and makes shards until all are there, by whomever; the last ones of others are waited for.

        Args:
            make: a shard's number -> its body.
            finished: the shards are not needed any more, and may be gone; asked after each look for one.
        """
        left = self.left()
        progress = Progress(self, len(left))
        while left and not finished():
            tried = [self._try(number, make, finished, progress) for number in left]
            if not any(tried):
                time.sleep(POLL)
            left = self.left()

    def _try(
        self,
        number: int,
        make: Callable[[int], bytes],
        finished: Callable[[], bool],
        progress: Progress,
    ) -> bool:
        """Makes a shard unless somebody has or does."""
        path = self.shard_path(number)
        if path.exists() or finished():
            return False
        with claim(self.folder, path.stem) as mine:
            if not mine or path.exists() or finished():
                return False
            body = make(number)
            head = self._head(number) | {"sha256": hashlib.sha256(body).hexdigest()}
            write_durably(path, json.dumps(head).encode() + b"\n" + body)
        progress.report()
        return True

    def _head(self, number: int) -> dict[str, Any]:
        return {"job": self.digest, "shard": number, "of": self.shards}

    def read(self, number: int) -> bytes:
        """The body of a shard.

        Raises:
            UnfinishedError: it is not there.
            BulkError: it is another one's, or not what was written.
        """
        path = self.shard_path(number)
        try:
            first, _, body = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            raise UnfinishedError(
                f"{self.name}: shard {number} of {self.shards} is not there: decode it first ({path})"
            ) from None
        try:
            head = json.loads(first)
            digest = head.pop("sha256")
        except (ValueError, TypeError, AttributeError, KeyError):
            raise damaged(path) from None
        if head != self._head(number):
            raise BulkError(
                f"{path} is shard {head.get('shard')} of {head.get('of')} of this or another job by its first line, "
                "not what its name says: delete it and it is made anew"
            )
        if hashlib.sha256(body).hexdigest() != digest:
            raise damaged(path)
        return body

    def tidy(self) -> None:
        """Removes what killed workers left; for who knows that all shards are there.

        A file that is being written belongs to a claim, and goes only if nobody holds that.
        """
        for path in self.folder.glob(f"{self.name}.*.partial"):
            written, _, _ = path.name.rsplit(".", 2)
            with claim(self.folder, written.removesuffix(".shard")) as mine:
                if mine:
                    path.unlink(missing_ok=True)
        for path in self.folder.glob(f"{self.name}.*.claim"):
            with claim(self.folder, path.stem):
                pass  # a claim that is given back is removed


class Progress:
    """Tells now and then how far all workers are, and how long the ``left`` shards will take."""

    def __init__(self, job: Job, left: int):
        self.job, self.left = job, left
        self.began = self.reported = time.monotonic()
        done = job.shards - left
        if done:
            logger.info("%s: %d of %d shards are there already", job.name, done, job.shards)

    def report(self) -> None:
        now = time.monotonic()
        if now - self.reported < REPORT:
            return
        self.reported = now
        logger.info("%s", self.line(len(self.job.left()), now - self.began))

    def line(self, left: int, seconds: float) -> str:
        """Progress of the job as text. ``left``: shards; ``seconds``: since the worker began."""
        job, made = self.job, self.left - left
        speed = made * job.header["sentences"] / job.shards / seconds
        return (
            f"{job.name}: {job.shards - left} of {job.shards} shards are there, {speed:.3g} sentences/s by all "
            f"workers, {timedelta(seconds=round(left * seconds / made)) if made else 'unknown'} left"
        )


# -- files


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file whole: it is on disk under its name when the call returns, or not there."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:  # a full disk: to write tells no name
        error.filename = error.filename or str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Puts a file, or a folder's list of files, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def damaged(path: Path) -> BulkError:
    return BulkError(
        f"{path} is not what was written there: the file was changed or the disk failed; delete it and this shard is "
        "made anew"
    )


# -- headers


def header_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.job.json"


def read_header(path: Path) -> Header:
    """Raises :class:`BulkError` for what is no header."""
    try:
        header = json.loads(path.read_bytes())
    except ValueError:
        header = None
    if not isinstance(header, dict) or not all(
        type(header.get(key)) is int and header[key] >= 0 for key in ("shards", "sentences")
    ):
        raise BulkError(f"{path} is not what was written there: delete it, and the job begins anew")
    return header


def check_header(name: str, stored: Header, wanted: Header) -> None:
    """Raises :class:`BulkError`, naming the first entry that differs, notes aside."""
    old, new = _flat(stored), _flat(wanted)
    for key in [*new, *old]:
        if old.get(key) != new.get(key):
            difference = _difference(key, old.get(key), new.get(key))
            raise BulkError(
                f"{name} was begun with {difference}: give what it was begun with, or another output"
            )


def _difference(key: str, old: Any, new: Any) -> str:
    """Describes what an entry was, in words; the digest that stands for a file is not shown, for nobody has typed
    it."""
    if not key.startswith("--"):
        return f"another {key}"
    values = [_shown(value) for value in (old, new)]
    return f"another file for {key}" if values[0] == values[1] else f"{key} {', not '.join(values)}"


def _shown(value: Any) -> str:
    digest = isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)
    return "FILE" if digest else "none" if value is None else json.dumps(value)


def _flat(header: Header) -> dict[str, Any]:
    """Entries of a header under names that a user knows, its options one by one in their place."""
    entries: dict[str, Any] = {}
    for key, value in header.items():
        if key == "options":
            entries |= {f"--{name.replace('_', '-')}": setting for name, setting in value.items()}
        elif key != NOTES:
            entries[LABELS.get(key, key)] = value
    return entries
