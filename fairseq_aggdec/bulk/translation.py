"""Bulk translation: a text of any size, line by line, into a file that is there when all of it is.

    OUT.parts/text.job.json, text.7-of-40.shard ...    the job, see ``job.py``
    OUT.parts/input                                    what came from standard input
    OUT.parts/merged.json                              digest of what was made of the shards
    OUT                                                comes last, whole; then the shards go

The output of a line depends on the lines of its shard at most (they are decoded together), never on who decodes it.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from fairseq import utils

from fairseq_aggdec.api.translator import Hypothesis, Translator
from fairseq_aggdec.bulk import text
from fairseq_aggdec.bulk.text import STDIN, Text
from fairseq_aggdec.jobs.job import BulkError, Job, header_path, sync_folder, write_durably
from fairseq_aggdec.jobs.workers import forget

logger = logging.getLogger(__name__)

NAME, MERGED, KEPT_INPUT = "text", "merged.json", "input"
JSON_LINES = ".jsonl"


@dataclass(frozen=True)
class Places:
    """Where a text comes from and goes to.

    Attributes:
        source: ``--input-file``: a file, or ``-`` for standard input.
        target: ``--output-file``.
    """

    source: str
    target: Path

    @property
    def parts(self) -> Path:
        return self.target.with_name(f"{self.target.name}.parts")

    @property
    def json_lines(self) -> bool:
        """Whether the output is JSON lines, all hypotheses of each line; else a line of text, the best one."""
        return self.target.name.removesuffix(".gz").removesuffix(".zst").endswith(JSON_LINES)

    def check(self) -> None:
        """Refuses, before any work, what cannot be read or must not be replaced.

        Raises:
            BulkError, FileNotFoundError
        """
        if self.source != STDIN and not Path(self.source).is_file():
            raise BulkError(f"--input-file: there is no file {self.source}")
        if not self.target.parent.is_dir():
            raise BulkError(f"--output-file: there is no folder {self.target.parent}")
        if self.target.is_dir():
            raise BulkError(f"--output-file: {self.target} is a folder")
        if self.parts.exists() and not self.parts.is_dir():
            raise BulkError(f"--output-file: {self.parts} is in the way, which is not ours")
        begun = header_path(self.parts, NAME).exists()
        found = {path.name for path in self.parts.iterdir()} if self.parts.exists() else set()
        foreign = {
            name
            for name in found
            if name not in ("launcher", KEPT_INPUT) and ".partial" not in name
        }
        if foreign and not begun:
            raise BulkError(
                f"--output-file: {self.parts} holds files that are not ours: move it away"
            )
        if os.path.lexists(self.target) and not self.is_merged():
            raise BulkError(f"--output-file: {self.target} exists and is not ours: name a new file")

    def is_merged(self) -> bool:
        """Whether the output is there, made of the shards."""
        try:
            wanted = json.loads((self.parts / MERGED).read_bytes())["sha256"]
            return bool(text.digest(self.target) == wanted)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return False

    def input_path(self) -> Path:
        """The file to read; standard input is put into one first."""
        if self.source != STDIN:
            return Path(self.source)
        self.parts.mkdir(exist_ok=True)
        text.keep_stdin(self.parts / KEPT_INPUT)
        return self.parts / KEPT_INPUT


@dataclass
class LineTranslator:
    """Translates the lines of a shard.

    Attributes:
        translator: model and method.
        batch_size, max_tokens: sentences, and tokens with padding, that are decoded together at most; None: any number.
        skip: lines that are too long for the model get an empty output; else they end the work.
        json_lines: see :class:`Places`.
    """

    translator: Translator
    batch_size: int | None
    max_tokens: int | None
    skip: bool
    json_lines: bool

    def __call__(self, lines: list[str], first: int) -> bytes:
        """Lines, the first of which is line ``first`` of the text (from 0), -> lines of output.

        Raises:
            BulkError: a line is too long.
        """
        rows = [self.translator.tokens(line) for line in lines]
        fitting = [i for i, row in enumerate(rows) if self._fits(len(row), first + i)]
        found = self.translator.decode_tokens(
            [rows[i] for i in fitting],
            [first + i for i in fitting],
            self.batch_size,
            self.max_tokens,
        )
        ranked = dict(zip(fitting, found, strict=True))
        written = (self._line(line, first + i, ranked.get(i, [])) for i, line in enumerate(lines))
        return "".join(written).encode()

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
        hypotheses = [{"text": one.text, "score": one.score} for one in ranked]
        record = {"line": number + 1, "source": source, "hypotheses": hypotheses}
        return json.dumps(record, ensure_ascii=False) + "\n"


def work(job: Job, places: Places, source: Text, translate: LineTranslator, seed: int) -> None:
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

    with job.claims.turn("merge", places.is_merged, wait) as mine:
        if mine:
            if not places.is_merged():
                merge(job, places)
            clean(job, places)
    logger.info("%s is complete: %d lines", places.target, source.index.lines)


def merge(job: Job, places: Places) -> None:
    """Puts the shards together: the output is whole when its name is there.

    Raises:
        BulkError: a shard is damaged, or somebody else's file has come to the place.
    """
    partial = places.parts / "output.partial"
    with partial.open("wb") as file:
        with text.open_write(file, places.target) as out:
            for number in range(job.shards):
                out.write(job.read(number))
        file.flush()
        os.fsync(file.fileno())
    written = json.dumps({"sha256": text.digest(partial)}).encode() + b"\n"
    write_durably(places.parts / MERGED, written)
    if os.path.lexists(places.target):
        raise BulkError(f"{places.target} has come while the text was translated: move it away")
    partial.rename(places.target)
    sync_folder(places.target.parent)


def clean(job: Job, places: Places) -> None:
    """Removes what the output was made of; header and digest stay: who comes later sees that all is done."""
    for number in range(job.shards):
        job.shard_path(number).unlink(missing_ok=True)
    (places.parts / KEPT_INPUT).unlink(missing_ok=True)
    job.tidy()
