"""Records tests/unit/fast_align.txt: links that the original fast_align finds.

    scripts/recipes/lattice/fast_align.sh FOLDER
    python -m tests.origins.fast_align FOLDER/fast_align MULTI30K

MULTI30K is the folder with train.de.gz and train.en.gz (github.com/multi30k/dataset, data/task1/raw). The first 300
pairs are taken, in lower case and split at blanks. Each word is written as its number, because the aligner only
compares words. A line has source ||| target ||| links ||| links with -r.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "unit" / "fast_align.txt"
Words = list[str]


def captions(folder: Path, count: int) -> list[tuple[Words, Words]]:
    """The first pairs of Multi30k, German and English."""
    sides = []
    for language in ("de", "en"):
        with gzip.open(folder / f"train.{language}.gz", "rt", encoding="utf-8") as lines:
            sides.append(
                [line.lower().split() for line, _ in zip(lines, range(count), strict=False)]
            )
    return list(zip(*sides, strict=True))


def numbered(pairs: list[tuple[Words, Words]]) -> list[str]:
    """``s1 s2 ||| t1 t2 t2``: words by their first occurrence on either side."""
    known: dict[tuple[str, str], str] = {}
    lines = []
    for source, target in pairs:
        sides = []
        for mark, words in (("s", source), ("t", target)):
            for word in words:
                known.setdefault((mark, word), f"{mark}{len(known)}")
            sides.append(" ".join(known[mark, word] for word in words))
        lines.append(" ||| ".join(sides))
    return lines


def links(program: str, corpus: Path, *options: str) -> list[str]:
    """What the original writes for each pair of a corpus.

    It adds up in one thread: with more the sums have no fixed order, and ties may fall the other way.
    """
    command = [program, "-i", str(corpus), "-d", "-o", "-v", "-I", "5", *options]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout.splitlines()


def main(program: str, folder: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus"
        pairs = numbered(captions(Path(folder), 300))
        corpus.write_text("".join(f"{pair}\n" for pair in pairs), encoding="utf-8")
        columns = pairs, links(program, corpus), links(program, corpus, "-r")
    rows = (" ||| ".join(row) for row in zip(*columns, strict=True))
    RECORDED.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
