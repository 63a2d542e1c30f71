"""Sequence-level distillation: what a teacher wrote, and what is kept of it.

Sequence-level knowledge distillation (Kim & Rush 2016; aggressive decoding paper, 3.2.1) replaces
the targets of a training set by the outputs of a teacher. ``aggdec distill`` decodes a set in
batches whose list is the same in every process. They are the work of a job (``jobs/job.py``): shard
R of N holds the batches R, R + N, R + 2 N ... in that order, a line of JSON each:

    [[3, false, [8, 15, 4]], [7, false, [8, 9]]]

A sentence is its number in the set, whether it was cut at the maximum length, and the token ids
without ``</s>``.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_aggdec.jobs.job import BulkError

REASONS = ("too long", "empty", "cut", "length ratio")


class DistillationError(BulkError):
    """Outputs or folders that do not fit together, or not to the command; the message is for the user."""


@dataclass(frozen=True)
class Output:
    """Output that the teacher wrote for a sentence.

    Attributes:
        sentence: number in the data set.
        cut: ended by the maximum length.
        tokens: (T,) int32, target dictionary, without ``</s>``.
    """

    sentence: int
    cut: bool
    tokens: NDArray[np.int32]


# -- the batches of a shard


def write_batches(batches: Iterable[Sequence[Output]]) -> bytes:
    """The body of a shard."""
    rows = ([[o.sentence, o.cut, o.tokens.tolist()] for o in batch] for batch in batches)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def read_batches(body: bytes) -> list[list[Output]]:
    """Reads batches from the body of a shard."""
    return [
        [Output(sentence, cut, np.array(tokens, np.int32)) for sentence, cut, tokens in batch]
        for batch in map(json.loads, body.splitlines())
    ]


# -- what is kept


@dataclass(frozen=True)
class Filter:
    """Chooses pairs that are worth training on.

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
    """Tells how many pairs were dropped for each of :data:`REASONS`, zeros included."""
    counts = Counter(reasons)
    return {reason: counts[reason] for reason in REASONS}
