"""Articles and summaries as GPT-2's byte pairs, which BART reads: a step of gad_cnndm.sh.

TEXT has {train,val,test}.{source,target}, a text a line; OUTPUT gets train, valid and test, and ``counts.json``. Of an
article no more is kept than BART has positions for, as fairseq's --truncate-source does it. Pairs of training and
validation with an empty side, or with a summary too long for BART, are left out and counted; the test set stays whole.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq.data.encoders.gpt2_bpe_utils import Encoder

CHUNK = 100  # lines that a process encodes at once
SPLITS = {"train": "train", "val": "valid", "test": "test"}
SIDES = ("source", "target")
POSITIONS = 1024  # of BART; the last one is for </s>


class StepError(ValueError):
    """A message for the user of the recipe."""


@cache
def encoder(folder: str) -> Encoder:
    """GPT-2's byte pairs from the files that fairseq offers; read once per process."""
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    return get_encoder(f"{folder}/encoder.json", f"{folder}/vocab.bpe")


def encode(folder: str, pair: tuple[str, str]) -> tuple[list[int], list[int]]:
    """The pieces of an article, as many as BART reads, and of its summary."""
    article, summary = (encoder(folder).encode(text.strip()) for text in pair)
    return article[: POSITIONS - 1], summary


def check(text: Path) -> None:
    """Raises :class:`StepError` where the two sides of a set differ in length, before a process is started."""
    for split in SPLITS:
        lengths = []
        for side in SIDES:
            with open(text / f"{split}.{side}", "rb") as lines:
                lengths.append(sum(1 for _ in lines))
        if lengths[0] != lengths[1]:
            raise StepError(
                f"{text}: {split}.source has {lengths[0]} lines, {split}.target has {lengths[1]}"
            )


def pairs(text: Path, split: str) -> Iterator[tuple[str, str]]:
    """Articles and summaries of a set."""
    paths = [text / f"{split}.{side}" for side in SIDES]
    with ExitStack() as stack:
        sides = [stack.enter_context(open(p, encoding="utf-8", newline="\n")) for p in paths]
        yield from zip(*sides, strict=True)


def fault_of(article: list[int], summary: list[int]) -> str:
    """Why a pair cannot be learnt from; ``""`` if it can."""
    if not article or not summary:
        return "empty"
    return "too long" if len(summary) >= POSITIONS else ""


def write_split(
    text: Path, split: str, output: Path, bpe: str, pool: multiprocessing.pool.Pool
) -> Counter[str]:
    """Encodes a set; returns how many of its pairs were kept, and left out for which reason."""
    name = SPLITS[split]
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        files = [
            stack.enter_context(open(output / f"{name}.{side}", "w", encoding="utf-8"))
            for side in SIDES
        ]
        for found in pool.imap(partial(encode, bpe), pairs(text, split), chunksize=CHUNK):
            fault = fault_of(*found) if name != "test" else ""
            counts[f"{name}, {fault or 'kept'}"] += 1
            if not fault:
                for pieces, file in zip(found, files, strict=True):
                    file.write(" ".join(map(str, pieces)) + "\n")
    if not counts[f"{name}, kept"]:
        raise StepError(f"{text}: no pair of {split} is left of {counts.total()}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, metavar="TEXT")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--bpe", required=True, help="folder with encoder.json and vocab.bpe")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    try:
        check(args.text)
        encoder(args.bpe)  # before the processes start, which take it over
        with multiprocessing.Pool(max(1, args.workers)) as pool:
            for split in SPLITS:
                counts += write_split(args.text, split, args.output, args.bpe, pool)
    except (ValueError, OSError) as error:  # ours name file and what is wrong with it
        sys.exit(f"error: {error}")
    (args.output / "counts.json").write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
