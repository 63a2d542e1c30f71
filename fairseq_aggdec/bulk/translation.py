"""Bulk translation: a text of any size, line by line, into a file that is there when all of it is.

    OUT.parts/text.job.json, text.7-of-40.shard ...    the job, see ``job.py``
    OUT.parts/output.3f2a...partial                    an attempt to put the shards together
    OUT.parts/merged.json                              digest of the text that the shards make
    OUT                                                comes last, whole; then the shards go

The output of a line depends on the lines of its shard at most (they are decoded together), never on who decodes it.
"""

import hashlib
import itertools
import json
import logging
import math
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq import utils
from torch import Tensor

from fairseq_aggdec.api.calls import Call
from fairseq_aggdec.api.decoding import Hypothesis
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.bulk import text
from fairseq_aggdec.bulk.text import Text
from fairseq_aggdec.jobs.claims import turn
from fairseq_aggdec.jobs.job import (
    BulkError,
    Job,
    header_path,
    sync,
    write_durably,
)
from fairseq_aggdec.jobs.workers import forget

logger = logging.getLogger(__name__)

NAME, MERGED, MERGE = "text", "merged.json", "merge"
ATTEMPTS = ("output*.partial", f"{MERGED}.*.partial")  # files of those who put the shards together
JSON_LINES = ".jsonl"


@dataclass(frozen=True)
class BulkPlaces:
    """Places where a text comes from and goes to.

    Attributes:
        source: ``--input-file``.
        target: ``--output-file``.
    """

    source: Path
    target: Path

    @property
    def parts(self) -> Path:
        return self.target.with_name(f"{self.target.name}.parts")

    @property
    def json_lines(self) -> bool:
        """Tells whether the output is JSON lines, all hypotheses of each line; else a line of text, the best one."""
        return self.target.name.removesuffix(text.GZIP).endswith(JSON_LINES)

    def check(self) -> None:
        """Refuses, before any work, what cannot be read or must not be replaced.

        Raises:
            BulkError, FileNotFoundError
        """
        if self.source.is_dir():
            raise BulkError(f"--input-file: {self.source} is a folder, name a file")
        if self.source.is_fifo():
            raise BulkError(
                f"--input-file: {self.source} is a pipe, which can be read once only: write a file first, or give the "
                "lines to aggdec-interactive"
            )
        if not self.source.is_file():
            raise BulkError(f"--input-file: there is no file {self.source}")
        if not self.target.parent.is_dir():
            raise BulkError(f"--output-file: there is no folder {self.target.parent}")
        if self.target.suffix in text.OTHER_ARCHIVES:
            raise BulkError(
                f"--output-file: {self.target} would be plain text: of archives only {text.GZIP} is written"
            )
        if self.target.is_dir():
            raise BulkError(f"--output-file: {self.target} is a folder")
        if self.parts.exists() and not self.parts.is_dir():
            raise BulkError(f"--output-file: {self.parts} is in the way, which is not ours")
        begun = header_path(self.parts, NAME).exists()
        names = {path.name for path in self.parts.iterdir()} if self.parts.exists() else set()
        if not begun and any(not name.endswith((".partial", ".claim")) for name in names):
            raise BulkError(
                f"--output-file: {self.parts} holds files that are not ours: move it away"
            )
        if os.path.lexists(self.target) and not self.is_merged():
            raise BulkError(f"--output-file: {self.target} exists and is not ours: name a new file")

    def is_merged(self) -> bool:
        """Tells whether the output is there, made of the shards."""
        try:
            wanted = json.loads((self.parts / MERGED).read_bytes())["sha256"]
            return bool(text.content_digest(self.target) == wanted)
        except (FileNotFoundError, ValueError, TypeError, KeyError, *text.DAMAGED):
            return False


@dataclass
class LineTranslator:
    """Translates the lines of a shard.

    Attributes:
        translator: model and method.
        batch_size, max_tokens: sentences, and tokens with padding, that are decoded together at most; None: any number.
        skip: lines that are too long for the model get an empty output; else they end the work.
        json_lines: see :class:`BulkPlaces`.
        longest_source: tokens, ``</s>`` included, to which sources are cut (``--truncate-source``); None: they are not.
    """

    translator: Translator
    batch_size: int | None
    max_tokens: int | None
    skip: bool
    json_lines: bool
    longest_source: int | None = None

    def __call__(self, lines: list[str], first: int) -> bytes:
        """Lines, the first of which is line ``first`` of the text (from 0), -> lines of output.

        Raises:
            BulkError: a line is too long.
        """
        rows = [self._tokens(line) for line in lines]
        fitting = [i for i, row in enumerate(rows) if self._fits(len(row), first + i)]
        decoded = self.translator.decode_tokens(
            [rows[i] for i in fitting],
            [first + i for i in fitting],
            self.batch_size,
            Call(max_tokens=self.max_tokens),
        )
        ranked = dict(zip(fitting, decoded, strict=True))
        written = (self._line(line, first + i, ranked.get(i, [])) for i, line in enumerate(lines))
        return "".join(written).encode()

    def _tokens(self, line: str) -> Tensor:
        """(S,) int64 with ``</s>``, cut as fairseq-generate cuts the sources of a set."""
        row = self.translator.tokens(line)
        if self.longest_source is not None and len(row) > self.longest_source:
            row = torch.cat([row[: self.longest_source - 1], row[-1:]])
        return row

    def _fits(self, length: int, number: int) -> bool:
        longest = min(self.translator.longest, self.max_tokens or length)
        if length > longest and not self.skip:
            raise BulkError(
                f"line {number + 1} of the input has {length} tokens with </s>, at most {longest} fit: split it, or "
                "get an empty line for it with --skip-invalid-size-inputs-valid-test"
            )
        return length <= longest

    def _line(self, source: str, number: int, ranked: list[Hypothesis]) -> str:
        if not self.json_lines:
            return (ranked[0].text if ranked else "") + "\n"
        hypotheses = [{"text": one.text, "score": finite(one.score)} for one in ranked]
        record = {"line": number + 1, "source": source, "hypotheses": hypotheses}
        return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def finite(score: float) -> float | None:
    """JSON knows no infinity: null stands for the score of an output that the model thinks impossible."""
    return score if math.isfinite(score) else None


def work(job: Job, places: BulkPlaces, source: Text, translate: LineTranslator, seed: int) -> None:
    """Translates until all shards are there, and makes the output of them if nobody else does.

    Args:
        seed: of what is random, in each shard on its own.
    """

    def make(shard: int) -> bytes:
        utils.set_torch_seed(seed + shard)
        forget(translate.translator.generator)
        return translate(source.lines(shard), shard * source.index.shard_size)

    def finished() -> bool:
        return (places.parts / MERGED).exists() and places.target.exists()

    if not places.is_merged():
        job.work(make, finished)

    def wait() -> None:
        logger.info("another worker writes %s: waiting for it", places.target)

    with turn(places.parts, MERGE, places.is_merged, wait) as mine:
        if mine:
            for path in itertools.chain(*map(places.parts.glob, ATTEMPTS)):
                path.unlink(missing_ok=True)
            if not places.is_merged():
                merge(job, places)
            clean(job)
    logger.info("%s is complete: %d lines", places.target, source.index.lines)


def merge(job: Job, places: BulkPlaces) -> None:
    """Puts the shards together: the output is whole when its name is there.

    Raises:
        BulkError: a shard is damaged, or somebody else's file has come to the place.
    """
    partial = places.parts / f"output.{uuid.uuid4().hex}.partial"
    try:
        whole = hashlib.sha256()
        with partial.open("xb") as file:
            with text.open_write(file, places.target) as out:
                for number in range(job.shards):
                    body = job.read(number)
                    whole.update(body)
                    out.write(body)
            file.flush()
            os.fsync(file.fileno())
        written = json.dumps({"sha256": whole.hexdigest()}).encode() + b"\n"
        write_durably(places.parts / MERGED, written)
        if os.path.lexists(places.target):
            raise BulkError(f"{places.target} has come while the text was translated: move it away")
        partial.replace(places.target)
    except OSError as error:  # a full disk, or a limit of size: to write tells no name
        error.filename = error.filename or str(places.target)
        raise
    finally:
        partial.unlink(missing_ok=True)
    sync(places.target.parent)


def clean(job: Job) -> None:
    """Removes what the output was made of; header and digest stay: who comes later sees that all is done."""
    for number in range(job.shards):
        job.shard_path(number).unlink(missing_ok=True)
    job.tidy()
