"""Word alignment: which source token each target token of a training pair comes from, by fast_align (Dyer et al. 2013).

Links are written as a line per sentence pair, ``0-0 1-2 2-1``: source position - target position, both from 0, ``</s>``
not counted. A pair with an empty side has an empty line. Tokens are what the dictionary or the blanks of a text make
them: words, BPE or sentencepiece units.

``--aligner systran`` estimates with the package systran-align, which is fast_align as a library; ``--aligner
fast_align`` runs the programs ``fast_align`` and ``atools``. ``forward`` gives each target token at most one source
token, ``reverse`` the other way round, and the other symmetrisations combine the two. The default, ``union``, has
kept the most reference tokens in lattices (``scripts/recipes/lattice/recall_table.py``).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fairseq_aggdec import installing
from fairseq_aggdec.lattice.alignment.corpus import CHUNK, BinarisedPairs
from fairseq_aggdec.lattice.alignment.fast_align_model import COMBINE, START_TENSION, Model

ALIGNERS = ("systran", "fast_align")
DIRECTIONS = ("forward", "reverse")
BORDER = "|||"  # between source and target in the files that fast_align reads
_BATCH = 20_000  # sentence pairs whose links are found at once
_BAD_LINE = re.compile(rb"^(?!(?:\d+-\d+(?: \d+-\d+)*)? *\r?$).*$", re.MULTILINE)
_TENSION = re.compile(r"final tension: (\S+)")
# Run by itself: the library reports its progress and the tension only on its standard error.
_ESTIMATE = """
import json, sys, systran_align
systran_align.generate_alignment_probabilities(*sys.argv[1:4], **json.loads(sys.argv[4]))
"""

Pair = tuple[Iterable[Any], Iterable[Any]]


@dataclass(frozen=True)
class Aligner:
    """How to align.

    Attributes:
        name: ``systran`` or ``fast_align``.
        symmetrisation: how the two directions are combined, or which of them is taken.
        iterations: of expectation maximisation.
        fast_align, atools: the programs, for ``fast_align`` only.

    Raises:
        ValueError: no iteration.
        ModuleNotFoundError, FileNotFoundError: what does the work is not installed.
    """

    name: str = "systran"
    symmetrisation: str = "union"
    iterations: int = 5
    fast_align: str = "fast_align"
    atools: str = "atools"

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"--iterations is {self.iterations}; it must be at least 1")
        if self.name == "fast_align":
            self._check_programs()
        elif find_spec("systran_align") is None:
            raise ModuleNotFoundError(
                f"word alignment needs systran-align: {installing.advice('systran_align')} (Python 3.11; "
                "it has no build for 3.12), or give your own programs with --aligner fast_align"
            )

    def _check_programs(self) -> None:
        options = {"--fast-align": self.fast_align}
        if self.symmetrisation not in DIRECTIONS:
            options["--atools"] = self.atools
        for option, program in options.items():
            if shutil.which(program) is None:
                raise FileNotFoundError(f"there is no program {program}; name it with {option}")

    def align(self, pairs: Iterable[Pair], output: Path, total: int | None = None) -> int:
        """Writes the links of sentence pairs, a line for each; the file appears when it is whole.

        Args:
            pairs: source and target tokens, strings or numbers.
            output: file.
            total: number of pairs, for the progress bar.

        Returns:
            The number of links.

        Raises:
            RuntimeError: the aligner failed.
        """
        scratch = output.with_name(f"{output.name}.align")
        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
        scratch.mkdir(parents=True)
        try:
            corpus, partial, links = scratch / "corpus", scratch / "links", 0
            full = _write_corpus(pairs, corpus, total)
            by = self._by_library if self.name == "systran" else self._by_programs
            lines = by(corpus) if any(full) else iter(())
            with partial.open("w", encoding="ascii") as file:
                for has_tokens in tqdm(full, desc="align", unit=" pairs"):
                    line = next(lines, None) if has_tokens else ""
                    if line is None:
                        raise RuntimeError(f"{self.name} wrote fewer lines than it was given")
                    links += line.count("-")
                    file.write(line + "\n")
            partial.replace(output)
        finally:
            shutil.rmtree(scratch)
        return links

    def _by_library(self, corpus: Path) -> Iterator[str]:
        """The links of every line of a corpus file."""
        paths = [corpus.with_suffix(f".{direction}") for direction in DIRECTIONS]
        forward, reverse = map(Model.read, paths, self._estimate(corpus, paths))
        combine = COMBINE[self.symmetrisation]
        with corpus.open(encoding="utf-8") as file:
            while batch := [line.split(f" {BORDER} ") for line in islice(file, _BATCH)]:
                source, target = ([pair[side].split() for pair in batch] for side in (0, 1))
                there, back = forward.links(source, target), reverse.links(target, source)
                for origins, aims in zip(there, back, strict=True):
                    one = {(i, j) for j, i in enumerate(origins.tolist()) if i >= 0}
                    other = {(i, j) for i, j in enumerate(aims.tolist()) if j >= 0}
                    yield " ".join(f"{i}-{j}" for i, j in sorted(combine(one, other)))

    def _estimate(self, corpus: Path, models: Sequence[Path]) -> list[float]:
        """Writes the models of both directions; their tensions."""
        options = {
            "verbose": True,
            "iterations": self.iterations,
            "favor_diagonal": True,
            "optimize_tension": True,
            "variational_bayes": True,
            "diagonal_tension": START_TENSION,
        }
        files = [str(path) for path in (corpus, *models)]
        command = [sys.executable, "-c", _ESTIMATE, *files, json.dumps(options)]
        tensions: list[float] = []
        last = ""
        with (
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as child,
            tqdm(total=2 * self.iterations, desc="estimate", unit=" iterations") as bar,
        ):
            assert child.stdout is not None
            for line in child.stdout:
                last = line.strip() or last
                if line.startswith("INITIAL PASS"):
                    tensions.append(START_TENSION)
                elif line.startswith("ITERATION"):
                    bar.update()
                elif found := _TENSION.search(line):
                    tensions[-1] = float(found[1])
        if child.returncode or len(tensions) != len(models):
            raise RuntimeError(f"systran-align failed with status {child.returncode}: {last}")
        return tensions

    def _by_programs(self, corpus: Path) -> Iterator[str]:
        command = [self.fast_align, "-i", str(corpus), "-d", "-o", "-v", "-I", str(self.iterations)]
        single = self.symmetrisation in DIRECTIONS
        wanted = (self.symmetrisation,) if single else DIRECTIONS
        for direction in wanted:
            _run(
                [*command, *(["-r"] if direction == "reverse" else [])],
                corpus.with_suffix(f".{direction}"),
            )
        result = corpus.with_suffix(f".{self.symmetrisation}")
        if not single:
            files = [str(corpus.with_suffix(f".{direction}")) for direction in DIRECTIONS]
            _run([self.atools, "-i", files[0], "-j", files[1], "-c", self.symmetrisation], result)
        with result.open(encoding="ascii") as file:
            for line in file:
                yield line.strip()


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
                shown = bad.group()[:40].decode(errors="replace")
                raise ValueError(f"{path}, line {number}: {shown!r} is not of the form 0-0 1-2")
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
        for source, target in tqdm(pairs, desc="write", total=total, unit=" pairs"):
            sides = [_joined(source), _joined(target)]
            full.append(all(sides))
            if full[-1]:
                file.write(f" {BORDER} ".join(sides) + "\n")
    return full


def _joined(tokens: Iterable[Any]) -> str:
    """Tokens with blanks between them; one that would be taken for the border of the pair loses a stroke."""
    return " ".join(BORDER[1:] if token == BORDER else str(token) for token in tokens)


def _run(command: Sequence[str], output: Path) -> None:
    with output.open("wb") as file:
        status = subprocess.run(command, stdout=file, check=False).returncode
    if status:
        raise RuntimeError(f"{command[0]} failed with status {status}; what it said stands above")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that :func:`build_aligner` reads."""
    group = parser.add_argument_group("word alignment")
    group.add_argument("--aligner", choices=ALIGNERS, default="systran")
    group.add_argument("--symmetrisation", choices=list(COMBINE), default="union")
    group.add_argument("--iterations", type=int, default=5, help="of estimation (default: 5)")
    group.add_argument("--fast-align", default="fast_align", metavar="PROGRAM")
    group.add_argument("--atools", default="atools", metavar="PROGRAM")


def build_aligner(args: argparse.Namespace) -> Aligner:
    return Aligner(args.aligner, args.symmetrisation, args.iterations, args.fast_align, args.atools)
