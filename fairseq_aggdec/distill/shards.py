"""All shards of a set, read and put together."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_aggdec.distill.distillation import Output, read_batches
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
        BulkError: a shard is damaged, or of another job.
    """
    path = header_path(folder, subset)
    if not path.exists():
        raise UnfinishedError(f"{folder} has nothing of {subset} yet: decode it first")
    header = read_header(path)
    job = Job(folder, subset, header)
    outputs: list[Output | None] = [None] * header["sentences"]
    for number in range(job.shards):
        for batch in read_batches(job.read(number)):
            for output in batch:
                outputs[output.sentence] = output
    return Distilled(header, outputs)


def order_digest(batches: Sequence[Sequence[int]]) -> str:
    """Digest, for a header, of the sentence numbers of all batches."""
    return hashlib.sha256(json.dumps([list(batch) for batch in batches]).encode()).hexdigest()
