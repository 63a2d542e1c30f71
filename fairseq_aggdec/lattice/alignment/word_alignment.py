"""Word alignment: which source token each target token of a training pair comes from, by fast_align (Dyer et al. 2013).

Links are written as a line per sentence pair, ``0-0 1-2 2-1``: source position - target position, both from 0, ``</s>``
not counted. A pair with an empty side has an empty line. Tokens are what the dictionary or the blanks of a text make
them: words, BPE or sentencepiece units.

The links of each direction are estimated here (``estimation.py``), or by the original program with ``--fast-align
PROGRAM``, which finds the same links, is faster on millions of pairs, and takes more memory. ``forward`` gives each
target token at most one source token, ``reverse`` the other way round, and ``union``, the default, has the links of
both. It has kept the most reference tokens in lattices (``scripts/recipes/lattice/recall_table.py``).
"""

import argparse
import re
import shutil
import subprocess
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_aggdec.lattice.alignment import DIRECTIONS, UNION
from fairseq_aggdec.lattice.alignment.corpus import CHUNK, BinarisedPairs, Sentences
from fairseq_aggdec.lattice.alignment.estimation import best_links

BORDER = "|||"  # between source and target in the files that fast_align reads
_BAD_LINE = re.compile(rb"^(?!(?:\d+-\d+(?: \d+-\d+)*)? *\r?$).*$", re.MULTILINE)

Pair = tuple[Iterable[Any], Iterable[Any]]
Link = tuple[int, int]


@dataclass(frozen=True)
class Aligner:
    """Tells how to align.

    Attributes:
        symmetrisation: ``union`` of the two directions, or which of them is taken.
        iterations: passes over the pairs; the last one only aligns.
        program: the original ``fast_align``, instead of the estimation here.

    Raises:
        ValueError: no iteration.
        FileNotFoundError: there is no such program.
    """

    symmetrisation: str = UNION
    iterations: int = 5
    program: str | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"--iterations is {self.iterations}; it must be at least 1")
        if self.program is not None and shutil.which(self.program) is None:
            raise FileNotFoundError(
                f"there is no program {self.program}; name it with --fast-align"
            )

    def align(self, pairs: Iterable[Pair], output: Path, total: int | None = None) -> int:
        """Writes the links of sentence pairs, a line for each; the file appears when it is whole.

        Args:
            pairs: source and target tokens, strings or numbers.
            output: file.
            total: number of pairs, for the progress bar.

        Returns:
            The number of links.

        Raises:
            RuntimeError: the program failed.
        """
        scratch = output.with_name(f"{output.name}.align")
        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
        scratch.mkdir(parents=True)
        try:
            corpus, partial, links = scratch / "corpus", scratch / "links", 0
            full = _write_corpus(pairs, corpus, total)
            lines = self._links(corpus) if any(full) else iter(())
            with partial.open("w", encoding="ascii") as file:
                for has_tokens in tqdm(full, desc="align", unit=" pairs", disable=None):
                    of_line = next(lines, None) if has_tokens else set[Link]()
                    if of_line is None:
                        raise RuntimeError(f"{self.program} wrote fewer lines than it was given")
                    links += len(of_line)
                    file.write(" ".join(f"{i}-{j}" for i, j in sorted(of_line)) + "\n")
            partial.replace(output)
        finally:
            shutil.rmtree(scratch)
        return links

    def _links(self, corpus: Path) -> Iterator[set[Link]]:
        """The links of every line of a corpus file."""
        wanted = DIRECTIONS if self.symmetrisation == UNION else (self.symmetrisation,)
        align = self._by_program if self.program else self._by_estimation
        each = [align(corpus, direction) for direction in wanted]
        return (set.union(*links) for links in zip(*each, strict=False))

    def _by_estimation(self, corpus: Path, direction: str) -> Iterator[set[Link]]:
        origin, aim = _read_corpus(corpus)[:: -1 if direction == "reverse" else 1]
        scratch = corpus.with_suffix(f".{direction}")
        scratch.mkdir()
        links = best_links(origin, aim, self.iterations, scratch)
        for row in Sentences(links, aim.lengths):
            pairs = [(i, j) for j, i in enumerate(row.tolist()) if i >= 0]
            yield {(j, i) for i, j in pairs} if direction == "reverse" else set(pairs)

    def _by_program(self, corpus: Path, direction: str) -> Iterator[set[Link]]:
        output = corpus.with_suffix(f".{direction}")
        command = [
            str(self.program),
            "-i",
            str(corpus),
            "-d",
            "-o",
            "-v",
            "-I",
            str(self.iterations),
        ]
        with output.open("wb") as file:
            done = subprocess.run(
                [*command, *(["-r"] if direction == "reverse" else [])], stdout=file, check=False
            )
        if done.returncode:
            raise RuntimeError(
                f"{self.program} failed with status {done.returncode}; what it said stands above"
            )
        with output.open(encoding="ascii") as lines:
            for line in lines:
                yield {(int(i), int(j)) for i, j in (link.split("-") for link in line.split())}


def align_data(aligner: Aligner, pairs: BinarisedPairs, output: Path) -> int:
    """Writes the links of binarised sentence pairs; the number of links. Raises what :meth:`Aligner.align` does."""
    tokens = (
        pair for source, target in pairs.chunks() for pair in zip(source, target, strict=True)
    )
    return aligner.align(tokens, output, len(pairs))


def read_links(path: Path, size: int = CHUNK) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Reads a file of links, ``size`` lines at a time.

    Yields:
        Links (L, 2) int32, source and target positions, and how many each line has (P,) int64.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is something else.
    """
    done = 0
    with path.open("rb") as file:
        while lines := list(islice(file, size)):
            text = b"".join(lines)
            bad = _BAD_LINE.search(text)
            if bad:
                number = done + text.count(b"\n", 0, bad.start()) + 1
                spelt = bad.group()[:40].decode(errors="replace")
                raise ValueError(f"{path}, line {number}: {spelt!r} is not of the form 0-0 1-2")
            counts = np.fromiter((line.count(b"-") for line in lines), np.int64, len(lines))
            try:
                numbers = np.array(text.replace(b"-", b" ").split(), dtype=np.int32)
            except (OverflowError, ValueError):
                raise ValueError(
                    f"{path}, lines {done + 1} to {done + len(lines)}: a position is too large a number"
                ) from None
            yield numbers.reshape(-1, 2), counts
            done += len(lines)


def _write_corpus(pairs: Iterable[Pair], path: Path, total: int | None) -> list[bool]:
    """Writes the pairs that have tokens on both sides as fast_align reads them; for each pair, whether it has."""
    full = []
    with path.open("w", encoding="utf-8") as file:
        for source, target in tqdm(pairs, desc="write", total=total, unit=" pairs", disable=None):
            sides = [_joined(source), _joined(target)]
            full.append(all(sides))
            if full[-1]:
                file.write(f" {BORDER} ".join(sides) + "\n")
    return full


def _joined(tokens: Iterable[Any]) -> str:
    """Tokens with blanks between them; one that would be taken for the border of the pair loses a stroke."""
    return " ".join(BORDER[1:] if token == BORDER else str(token) for token in tokens)


def _read_corpus(path: Path) -> tuple[Sentences, Sentences]:
    """The sentences that :func:`_write_corpus` wrote, words numbered from 1."""
    numbers: dict[str, int] = {}
    tokens, lengths = (array("i"), array("i")), (array("q"), array("q"))
    with path.open(encoding="utf-8") as file:
        for line in file:
            for side, text in enumerate(line.split(f" {BORDER} ")):
                words = [numbers.setdefault(word, len(numbers) + 1) for word in text.split()]
                tokens[side].extend(words)
                lengths[side].append(len(words))
    source, target = (
        Sentences(np.frombuffer(words, np.int32), np.frombuffer(sizes, np.int64))
        for words, sizes in zip(tokens, lengths, strict=True)
    )
    return source, target


def build_aligner(args: argparse.Namespace) -> Aligner:
    return Aligner(args.symmetrisation, args.iterations, args.fast_align)
