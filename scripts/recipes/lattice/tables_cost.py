"""What tables of candidates cost to make and to use on a large set, with synthetic data of its size.

    python -m scripts.recipes.lattice.tables_cost --pairs 1000000 --output docs/results/lattice-tables-1m

draws sentence pairs, aligns them (both directions), makes tables with aggdec lattice-tables, each in a process of
its own, opens what it wrote and makes the candidates of some sentences. Source words follow Zipf's law, every one
has a few translations, some are dropped, words move a little, and words of no source are put in between.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary, indexed_dataset
from tqdm import tqdm

from fairseq_aggdec.lattice.alignment.corpus import BinarisedPairs
from fairseq_aggdec.lattice.candidates import CandidateModel
from fairseq_aggdec.records import machine
from fairseq_aggdec.records.results import write_table

SOURCE, TARGET = "src", "tgt"
ALIGN = ["-m", "scripts.recipes.lattice.align"]
TABLES = ["-m", "fairseq_aggdec.cli.main", "lattice-tables"]
TRANSLATIONS = (0.7, 0.2, 0.1)  # chances of a word's translations
DROPPED, INSERTED = (
    0.1,
    0.1,
)  # share of source words without a word, of target words without a source
REACH = 3.0  # words move by less than this
LONGEST = 100
USED = 128  # sentences whose candidates are made
CANDIDATES = 64


def make_dictionary(types: int) -> Dictionary:
    dictionary = Dictionary()
    for number in range(types - len(dictionary)):
        dictionary.add_symbol(f"w{number}", n=types - number)
    return dictionary


class Language:
    """Draws sentence pairs.

    Args:
        types: size of both dictionaries.
        length: mean number of source words.
        seed: of all draws.
    """

    def __init__(self, types: int, length: float, seed: int):
        self.random = np.random.default_rng(seed)
        self.length, self.first = length, Dictionary().nspecial
        words = types - self.first
        self.steps = np.cumsum(1 / np.arange(1, words + 1))  # Zipf
        self.lexicon = self._words(words * len(TRANSLATIONS)).reshape(words, -1)

    def _words(self, count: int) -> np.ndarray:
        drawn = self.random.random(count) * self.steps[-1]
        return np.searchsorted(self.steps, drawn) + self.first

    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of a source and a target sentence, without ``</s>``."""
        length = int(np.clip(self.random.lognormal(np.log(self.length) - 0.125, 0.5), 1, LONGEST))
        source = self._words(length)
        choice = self.random.choice(len(TRANSLATIONS), length, p=TRANSLATIONS)
        kept = self.random.random(length) >= DROPPED
        target = self.lexicon[source - self.first, choice][kept]
        target = target[
            np.argsort(np.arange(len(target)) + REACH * self.random.random(len(target)))
        ]
        extra = self.random.random(len(target) + 1) < INSERTED
        extra[-1] |= not len(target)  # no target is empty
        return source, np.insert(target, np.flatnonzero(extra), self._words(int(extra.sum())))


def write_data(folder: Path, pairs: int, types: int, length: float, seed: int) -> None:
    """Writes a folder as fairseq-preprocess does."""
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = make_dictionary(types)
    prefixes = [str(folder / f"train.{SOURCE}-{TARGET}.{side}") for side in (SOURCE, TARGET)]
    for side in (SOURCE, TARGET):
        dictionary.save(str(folder / f"dict.{side}.txt"))
    builders = [
        indexed_dataset.make_builder(indexed_dataset.data_file_path(prefix), "mmap", types)
        for prefix in prefixes
    ]
    language = Language(types, length, seed)
    for _ in tqdm(range(pairs), desc="draw", unit=" pairs"):
        for builder, words in zip(builders, language.pair(), strict=True):
            builder.add_item(torch.from_numpy(np.append(words, dictionary.eos())))
    for builder, prefix in zip(builders, prefixes, strict=True):
        builder.finalize(indexed_dataset.index_file_path(prefix))


def make_tables(data: Path) -> dict[str, float]:
    """What alignment takes, and the tables by themselves, with its links."""
    links = data / "links.txt"
    align = [*ALIGN, "--data", str(data), "--output", str(links)]
    return cost_of("alignment", align) | cost_of(
        "tables", [*TABLES, str(data), "--links", str(links)]
    )


def cost_of(name: str, arguments: Sequence[str]) -> dict[str, float]:
    """Seconds of a Python command, and GiB of the largest of its processes."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    seconds = time.perf_counter() - began
    return {f"{name}, s": seconds, f"{name}, peak memory, GiB": used.ru_maxrss / 2**20}


def use_tables(data: Path) -> dict[str, float]:
    """What opening the tables and making candidates takes: seconds, MiB, and milliseconds per sentence."""
    pairs = BinarisedPairs(data, "train")
    before, began = _resident(), time.perf_counter()
    model = CandidateModel.open(pairs.folder, *pairs.dictionaries)
    opened = time.perf_counter() - began
    source, _ = next(pairs.chunks())
    ends = np.cumsum(source.lengths)
    began = time.perf_counter()
    for end, count in zip(ends[:USED].tolist(), source.lengths[:USED].tolist(), strict=True):
        words = torch.from_numpy(source.tokens[end - count : end].astype(np.int64))
        model.lattice(words[None], CANDIDATES, "interpolated")
    seconds = (time.perf_counter() - began) / min(USED, len(pairs))
    size = sum(path.stat().st_size for path in pairs.folder.glob("*.npy"))
    return {
        "size on disk, MiB": size / 2**20,
        "opened in, s": opened,
        f"memory after {USED} sentences, MiB": _resident() - before,
        "candidates of a sentence, ms": 1000 * seconds,
    }


def _resident() -> float:
    """MiB of this process in memory."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--types", type=int, default=32_000, help="size of both dictionaries")
    parser.add_argument("--length", type=float, default=27.0, help="mean source length")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="keep data and tables in this folder")
    parser.add_argument("--output", type=Path, required=True, help="OUTPUT.json and OUTPUT.md")
    args = parser.parse_args(arguments)
    if args.pairs < 1 or args.length < 1:
        parser.error("--pairs and --length must be at least 1")
    if args.types < 100:
        parser.error(f"--types is {args.types}; it must be at least 100")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    with tempfile.TemporaryDirectory() as folder:
        data = args.work or Path(folder)
        write_data(data, args.pairs, args.types, args.length, args.seed)
        found = make_tables(data) | use_tables(data)
    rows = (
        f"| {name} | {value:{',.0f' if value >= 100 else '.3g'}} |" for name, value in found.items()
    )
    table = "\n".join(["| | |", "|---|---|", *rows])
    title = f"Tables of candidates from {args.pairs:,} synthetic sentence pairs"
    given = sys.argv[1:] if arguments is None else arguments
    command = machine.command("scripts.recipes.lattice.tables_cost", given)
    write_table(args.output, title, command, table, found)
    print(table)


if __name__ == "__main__":
    main()
