"""What a teacher wrote, and what is kept of it: sequence-level distillation.

Sequence-level knowledge distillation (Kim & Rush 2016; aggressive decoding paper, 3.2.1) replaces
the targets of a training set by the outputs of a teacher. ``aggdec distill`` decodes a set in
batches whose list is the same in every process. They are the work of a job (``jobs/job.py``): shard
R of N holds the batches R, R + N, R + 2 N ... in that order, a line of JSON each:

    [[3, false, [8, 15, 4]], [7, false, [8, 9]]]

A sentence is its number in the set, whether it was cut at the maximum length, and the token ids
without ``</s>``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_aggdec.jobs.job import (
    BulkError,
    Header,
    Job,
    UnfinishedError,
    header_path,
    read_header,
)

REASONS = ("too long", "empty", "cut", "length ratio")


class DistillationError(BulkError):
    """Outputs or folders that do not fit together, or not to the command; the message is for the user."""


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


# -- shards: the job digests their bytes and refuses a change


def write_batches(batches: Iterable[Sequence[Output]]) -> bytes:
    """The body of a shard."""
    rows = ([[o.sentence, o.cut, o.tokens.tolist()] for o in batch] for batch in batches)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def order_digest(batches: Sequence[Sequence[int]]) -> str:
    """What a header says about the sentence numbers of all batches: workers must decode them in the same order."""
    return hashlib.sha256(json.dumps([list(batch) for batch in batches]).encode()).hexdigest()


@dataclass(frozen=True)
class Distilled:
    """A subset, complete.

    Attributes:
        header: of its job.
        outputs: every sentence of the set in its order; None: too long for the teacher.
    """

    header: Header
    outputs: list[Output | None]


def collect(folder: Path, subset: str) -> Distilled:
    """Reads all shards of a subset.

    Raises:
        UnfinishedError: a shard is missing.
        BulkError: a file was changed, or a sentence is not there exactly once.
    """
    path = header_path(folder, subset)
    if not path.exists():
        raise UnfinishedError(f"{folder} has nothing of {subset} yet: decode it first")
    header = read_header(path)
    job = Job(folder, subset, header)
    lines = [line for number in range(job.shards) for line in job.read(number).splitlines()]
    rows = [
        Output(sentence, cut, np.array(tokens, dtype=np.int32))
        for line in lines
        for sentence, cut, tokens in json.loads(line)
    ]
    seen = Counter([*(output.sentence for output in rows), *header["too_long"]])
    wrong = [number for number in range(header["sentences"]) if seen[number] != 1]
    wrong += [number for number in seen if not 0 <= number < header["sentences"]]
    if wrong:
        raise DistillationError(
            f"{subset}: {len(wrong)} sentences are not there exactly once, the first is {wrong[0]}"
        )
    by_number = {output.sentence: output for output in rows}
    return Distilled(header, [by_number.get(number) for number in range(header["sentences"])])


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
