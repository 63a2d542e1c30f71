"""Files of sequence-level distillation: what a teacher wrote so far, and what is kept of it.

Sequence-level knowledge distillation (Kim & Rush 2016; aggressive decoding paper, 3.2.1) replaces
the targets of a training set by the outputs of a teacher. ``scripts/distill.py`` decodes a set in
batches whose list is the same in every process; shard R of N owns the batches R, R + N, R + 2 N ...
and writes them, in that order, to a file of its own. The file's first line, the *header*, says what
decoded what; every further line is one batch:

    {"shards": 2, "shard": 0, "batches": 40, "sentences": 1000, "too_long": [], "options": ...}
    [[3, false, [8, 15, 4]], [7, false, [8, 9]]]

A sentence is its number in the set, whether it was cut at the maximum length, and the token ids
without ``</s>``. A line is on disk before the next batch is decoded. A kill costs one batch at
most: what it left of a line is cut off at the next start, and the batch is decoded once more.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Header = Mapping[str, Any]
NOTES = "notes"  # the part of a header that may differ between two starts
LABELS = {
    "teacher": "teacher (--path)",
    "data": "DATA",
    "shards": "--distributed-world-size",
    "shard": "--distributed-rank",
}
REASONS = ("too long", "empty", "cut", "length ratio")


class DistillationError(ValueError):
    """Files that do not fit together, or not to the command; the message is for the user."""


class UnfinishedError(DistillationError):
    """Shards are still to be decoded, here or on another machine."""


@dataclass(frozen=True)
class Output:
    """What the teacher wrote for a sentence.

    Attributes:
        sentence: number in the data set.
        cut: ended by the maximum length.
        tokens: (T,) int32, target dictionary, without ``</s>``.
    """

    sentence: int
    cut: bool
    tokens: NDArray[np.int32]


# -- one shard


def shard_path(folder: Path, subset: str, shard: int, shards: int) -> Path:
    return folder / f"{subset}.{shard}-of-{shards}.jsonl"


def own_batches(batches: Sequence[Any], shard: int, shards: int) -> list[Any]:
    """The batches of a shard: every ``shards``-th, so that all shards have short and long ones."""
    return list(islice(batches, shard, None, shards))


@contextmanager
def exclusive(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to read and append, held against other processes.

    The lock ends with the process, however that ends, and works across machines wherever the shared
    folder has POSIX locks. Child processes do not inherit it: a data loader that outlives its killed
    parent for seconds holds up nobody.

    Raises:
        DistillationError: another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise DistillationError(
                f"{path} is in use by another process: wait until it ends, or stop it"
            ) from None
        yield file


class ShardFile:
    """Durable progress of one shard.

    Args:
        file: from :func:`exclusive`.
        header: what this process would write; must agree with what is there.
        batches: the sentence numbers of each batch the shard owns, in order.

    Attributes:
        done: batches that are in the file.

    Raises:
        DistillationError: the file was begun with something else, or is damaged.
    """

    def __init__(self, file: BinaryIO, header: Header, batches: Sequence[Sequence[int]]):
        self.file = file
        self.batches = batches
        self.done = 0
        file.seek(0)
        lines = whole_lines(file)
        size = 0
        first = next(lines, None)
        if first is not None:
            check_header(file.name, parse_header(file.name, first), header)
            size = len(first)
        for line in lines:
            if not self._is_next(parse_batch(file.name, self.done + 2, line)):
                raise damaged(file.name, self.done + 2)
            self.done += 1
            size += len(line)
        file.truncate(size)
        if first is None:
            self._append(header)
            sync_folder(Path(file.name).parent)

    def append(self, outputs: Sequence[Output]) -> None:
        """Adds the next batch; it is on disk when the call returns.

        Raises:
            ValueError: these are not the sentences of the next batch, in its order.
        """
        if not self._is_next(outputs):
            raise ValueError(f"{self.file.name}: not the batch that comes next")
        self._append([[output.sentence, output.cut, output.tokens.tolist()] for output in outputs])
        self.done += 1

    def _is_next(self, outputs: Sequence[Output]) -> bool:
        found = [output.sentence for output in outputs]
        return self.done < len(self.batches) and found == list(self.batches[self.done])

    def _append(self, value: Any) -> None:
        self.file.write(json.dumps(value).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines up to the last line end: what follows it was being written when the process died."""
    return (line for line in file if line.endswith(b"\n"))


def parse_header(name: str, line: bytes) -> Header:
    try:
        header = json.loads(line)
    except ValueError:
        raise damaged(name, 1) from None
    if not isinstance(header, dict) or "options" not in header:
        raise damaged(name, 1)
    return header


def parse_batch(name: str, number: int, line: bytes) -> list[Output]:
    try:
        return [
            Output(sentence, cut, np.array(tokens, dtype=np.int32))
            for sentence, cut, tokens in json.loads(line)
        ]
    except (TypeError, ValueError):
        raise damaged(name, number) from None


def damaged(name: str, line: int) -> DistillationError:
    return DistillationError(
        f"{name}, line {line} is not what belongs there: the file was changed or the disk failed; "
        "delete it and this shard is decoded anew"
    )


def sync_folder(folder: Path) -> None:
    """Puts a folder's list of files on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- headers


def check_header(name: str, found: Header, wanted: Header) -> None:
    """Raises :class:`DistillationError`, naming the first entry that differs, notes aside."""
    old, new = _flat(found), _flat(wanted)
    for key in [*new, *old]:
        if old.get(key) != new.get(key):
            values = f"{key} {json.dumps(old.get(key))}, not {json.dumps(new.get(key))}"
            difference = values if key.startswith("--") else f"another {key}"
            raise DistillationError(
                f"{name} was begun with {difference}: give what it was begun with, or another --output"
            )


def check_siblings(folder: Path, subset: str, header: Header) -> None:
    """Refuses a shard that would not fit the others that are there, of any number of shards."""
    for path in sorted(folder.glob(f"{subset}.*-of-*.jsonl")):
        with path.open("rb") as file:
            first = next(whole_lines(file), None)
        if first is not None:
            found = parse_header(str(path), first)
            check_header(str(path), found, {**header, "shard": found["shard"]})


def _flat(header: Header) -> dict[str, Any]:
    """Entries of a header under names that a user knows, its options one by one in their place."""
    entries: dict[str, Any] = {}
    for key, value in header.items():
        if key == "options":
            entries |= {f"--{name.replace('_', '-')}": given for name, given in value.items()}
        elif key != NOTES:
            entries[LABELS.get(key, key)] = value
    return entries


# -- all shards


@dataclass(frozen=True)
class Distilled:
    """A subset, complete.

    Attributes:
        header: as of shard 0.
        outputs: every sentence of the set in its order; None: too long for the teacher.
    """

    header: Header
    outputs: list[Output | None]


def collect(folder: Path, subset: str) -> Distilled:
    """Reads all shards of a subset.

    Raises:
        UnfinishedError: a shard is missing or not finished.
        DistillationError: shards do not fit each other, or a sentence is not there exactly once.
    """
    paths = sorted(folder.glob(f"{subset}.*-of-*.jsonl"))
    if not paths:
        raise UnfinishedError(f"{folder} has nothing of {subset} yet: decode it first")
    shards = [read_shard(path) for path in paths]
    header = {**shards[0][0], "shard": 0}
    for path, (found, _) in zip(paths, shards, strict=True):
        check_header(str(path), {**found, "shard": 0}, header)
    for shard in range(header["shards"]):
        if shard_path(folder, subset, shard, header["shards"]) not in paths:
            raise UnfinishedError(
                f"{subset}: shard {shard} of {header['shards']} is not begun: decode it first"
            )
    return Distilled(header, _every_sentence(header, [rows for _, rows in shards]))


def read_shard(path: Path) -> tuple[Header, list[Output]]:
    """Header and outputs of a finished shard."""
    with path.open("rb") as file:
        lines = whole_lines(file)
        first = next(lines, None)
        if first is None:
            raise UnfinishedError(f"{path} is empty so far: wait for its process or run it again")
        header = parse_header(str(path), first)
        batches = [parse_batch(str(path), number, line) for number, line in enumerate(lines, 2)]
    owned = len(range(header["shard"], header["batches"], header["shards"]))
    if len(batches) < owned:
        raise UnfinishedError(
            f"{path} has {len(batches)} of {owned} batches: wait for its process or run it again"
        )
    return header, [output for batch in batches for output in batch]


def _every_sentence(header: Header, shards: Sequence[list[Output]]) -> list[Output | None]:
    """Outputs in the order of the set, each sentence once or known to be too long."""
    seen = Counter(output.sentence for outputs in shards for output in outputs)
    seen.update(header["too_long"])
    wrong = [number for number in range(header["sentences"]) if seen[number] != 1]
    wrong += [number for number in seen if not 0 <= number < header["sentences"]]
    if wrong:
        raise DistillationError(
            f"{header['subset']}: {len(wrong)} sentences are not there exactly once, "
            f"the first is {wrong[0]}"
        )
    by_number = {output.sentence: output for outputs in shards for output in outputs}
    return [by_number.get(number) for number in range(header["sentences"])]


# -- what is kept


@dataclass(frozen=True)
class Filter:
    """Which pairs are worth training on.

    Attributes:
        max_length_ratio: longer side over shorter side, in dictionary symbols; None: any.
        keep_cut: keep outputs that were cut at the maximum length.
    """

    max_length_ratio: float | None = None
    keep_cut: bool = False

    def reason(self, source_length: int, output: Output | None) -> str | None:
        """Why a pair is dropped, one of :data:`REASONS`; None: it is kept.

        Args:
            source_length: without ``</s>``.
            output: None for a sentence that the teacher could not take.
        """
        if output is None:
            return "too long"
        shorter, longer = sorted((source_length, len(output.tokens)))
        if shorter == 0:
            return "empty"
        if output.cut and not self.keep_cut:
            return "cut"
        if self.max_length_ratio is not None and longer > self.max_length_ratio * shorter:
            return "length ratio"
        return None


def count_reasons(reasons: Sequence[str | None]) -> dict[str, int]:
    """How many pairs were dropped for each of :data:`REASONS`, zeros included."""
    counts = Counter(reasons)
    return {reason: counts[reason] for reason in REASONS}
