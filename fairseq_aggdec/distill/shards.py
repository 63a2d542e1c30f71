"""All shards of a set, read and checked before anything is made of them.

A shard may come from another machine and have lain on a disk for weeks. What it says is taken up only when it is what
the teacher wrote of this set: every sentence once, in the order in which it was decoded, with ids of the dictionary.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_aggdec.distill.distillation import DistillationError, Output, read_batches
from fairseq_aggdec.jobs.job import Header, Job, UnfinishedError, header_path, read_header


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
        UnfinishedError: a shard is missing.
        BulkError: shards do not fit each other, or a sentence is not there exactly once.
    """
    path = header_path(folder, subset)
    if not path.exists():
        raise UnfinishedError(f"{folder} has nothing of {subset} yet: decode it first")
    header = read_header(path)
    _check_kind(path, subset, header)
    job = Job(folder, subset, header)
    shards = [read_batches(job.shard_path(n), job.read(n)) for n in range(job.shards)]
    outputs = _every_sentence(header, shards)
    _check_order(header, shards)
    return Distilled(header, outputs)


def _check_kind(path: Path, subset: str, header: Header) -> None:
    """A header of another kind, or under another set's name, is refused: its sentences would count as those of that."""
    too_long = header.get("too_long")
    if (
        header.get("subset") != subset
        or type(header.get("batches")) is not int
        or not isinstance(header.get("options"), dict)
        or not isinstance(too_long, list)
        or not all(type(number) is int for number in too_long)
    ):
        raise DistillationError(
            f"{path} is not the header of {subset}: it was changed or renamed; delete it, and {subset} is decoded anew"
        )


def order_digest(batches: Sequence[Sequence[int]]) -> str:
    """Digest, for a header, of the sentence numbers of all batches."""
    return hashlib.sha256(json.dumps([list(batch) for batch in batches]).encode()).hexdigest()


def _check_order(header: Header, shards: Sequence[list[list[Output]]]) -> None:
    """The batches of all shards, put together, are those that were to be decoded."""
    count = header["shards"]
    owned = [len(range(shard, header["batches"], count)) for shard in range(count)]
    if owned != [len(batches) for batches in shards]:
        raise DistillationError(
            f"{header['subset']}: a shard has not as many batches as belong to it"
        )
    found = [
        [output.sentence for output in shards[number % count][number // count]]
        for number in range(header["batches"])
    ]
    if order_digest(found) != header.get("order of sentences"):
        raise DistillationError(
            f"{header['subset']}: the shards do not hold the sentences in the order in which they were decoded: "
            "a file was changed; delete it and its shard is decoded anew"
        )


def check_tokens(found: Distilled, dictionary: Any) -> None:
    """Refuses outputs with what no teacher writes into a sentence: ids that the dictionary lacks, its end, padding.

    Raises:
        DistillationError: names the sentence.
    """
    for number, output in enumerate(found.outputs):
        tokens = np.empty(0, np.int32) if output is None else output.tokens
        wrong = (tokens < 0) | (tokens >= len(dictionary))
        wrong |= (tokens == dictionary.eos()) | (tokens == dictionary.pad())
        if wrong.any():
            raise DistillationError(
                f"{found.header['subset']}, sentence {number}: the token id {tokens[wrong][0]} cannot stand there: "
                f"the target dictionary has {len(dictionary)} types; a shard was changed, delete it to decode it anew"
            )


def _every_sentence(header: Header, shards: Sequence[list[list[Output]]]) -> list[Output | None]:
    """Outputs in the order of the set, each sentence once or known to be too long."""
    rows = [output for batches in shards for batch in batches for output in batch]
    seen = Counter(output.sentence for output in rows)
    seen.update(header["too_long"])
    wrong = [number for number in range(header["sentences"]) if seen[number] != 1]
    wrong += [number for number in seen if not 0 <= number < header["sentences"]]
    if wrong:
        raise DistillationError(
            f"{header['subset']}: {len(wrong)} sentences are not there exactly once, "
            f"the first is {wrong[0]}"
        )
    by_number = {output.sentence: output for output in rows}
    return [by_number.get(number) for number in range(header["sentences"])]
