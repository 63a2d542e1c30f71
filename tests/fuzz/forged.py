"""Forged folders of packed weights, in a process that may end: python -m tests.fuzz.forged SEED SECONDS [LIBRARIES]

Each case changes numbers, names, dtypes, sizes or bytes of one folder, makes all digests anew, as an attacker would,
and loads it through one of the doors. It is refused in one sentence, or it decodes. A case whose change is only of
sizes and names writes what the sound folder writes, if it is not refused. Prints the number of cases by their ends.

LIBRARIES is a folder of compiled kernels: those of the sanitizers in scripts/test.sh.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec import from_pretrained
from fairseq_aggdec.cli import fairseq_commands
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.kernels import library
from fairseq_aggdec.packed.files import CHECKPOINT
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.stored.loading import CheckpointError
from scripts import random_models
from tests.fuzz.forging import CHANGES, TABLES, Forged, a_table
from tests.random_models import random_tables
from tests.support import make_dictionary
from tests.unit.test_one_copy import SMALL

SYMBOLS = make_dictionary().symbols[4:]
LINES = [" ".join(random.Random(n).choices(SYMBOLS, k=3 + n)) for n in range(3)]
SEARCH = {"max_len_b": 8, "min_len": 3, "device": "cpu"}

Found = Any


def python(folder: Path, made: Made, chance: random.Random) -> Found:
    how = chance.choice([{"decoding": "greedy"}, {"beam": 2}, {"decoding": "iad"}])
    if made.heads(folder):
        how = {"decoding": "blockwise"}
    return from_pretrained(folder, None, **SEARCH, **how).translate(LINES)


def as_drafter(folder: Path, made: Made, chance: random.Random) -> Found:
    drafted = {"decoding": "gad", "draft_tokens": "3"}
    model = made.model if chance.random() < 0.5 else made.folders["fp32"]
    found = from_pretrained(model, made.data, drafter_path=folder, **SEARCH, **drafted)
    return found.translate(LINES)


def by_lattice(folder: Path, made: Made, chance: random.Random) -> Found:
    """A scorer with the tables in its folder."""
    tables = {"lattice": str(folder / TABLES)}
    found = from_pretrained(folder, None, "lattice", max_len_b=8, device="cpu", **tables)
    return found.translate(LINES)


def command(folder: Path, made: Made, chance: random.Random) -> Found:
    """``aggdec-generate --path``: fairseq reads the checkpoint, what is packed takes its place."""
    side = f"{random_models.SOURCE}-{random_models.TARGET}.{random_models.SOURCE}"
    (made.data / f"test.{side}").write_text("".join(f"{line}\n" for line in LINES))
    given = [str(made.data), "--path", str(folder), "--gen-subset", "test", "--dataset-impl", "raw"]
    given += ["-s", random_models.SOURCE, "-t", random_models.TARGET, "--cpu", "--max-len-b", "8"]
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["aggdec-generate", *given]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = fairseq_commands.generate()
    finally:
        sys.argv = before
    if status:
        raise CheckpointError(err.getvalue().strip().split("\n")[-1])
    return [line for line in out.getvalue().splitlines() if line.startswith("H-")]


def packing(folder: Path, made: Made, chance: random.Random) -> Found:
    """``aggdec pack`` of the checkpoint in the folder, with the folder's own dictionaries."""
    out = made.data / "again"
    shutil.rmtree(out, ignore_errors=True)
    pack(folder / CHECKPOINT, folder, out, chance.choice(["fp32", "int8"]))
    return None


class Made:
    """Sound folders, and what they write at each door."""

    def __init__(self, data: Path):
        self.data, self.model = data, data / "model.pt"
        for language in (random_models.SOURCE, random_models.TARGET):
            make_dictionary().save(str(data / f"dict.{language}.txt"))
        shared = [*SMALL, "--share-all-embeddings"]
        random_models.write_checkpoint(self.model, data, "transformer", *shared)
        flags = ["--block-size", "4", "--share-decoder-input-output-embed"]
        random_models.write_checkpoint(data / "drafter.pt", data, "nar_drafter", *SMALL, *flags)
        heads = ["--block-size", "4", "--head-layout", "dense", "--head-hidden-dim", "128"]
        random_models.write_checkpoint(
            data / "heads.pt", data, "blockwise_transformer", *shared, *heads
        )
        random_models.write_checkpoint(data / "lattice.pt", data, "lattice_transformer", *shared)
        self.folders = {}
        for name, file, kind in (
            ("fp32", "model", "fp32"),
            ("int8", "model", "int8"),
            ("drafter", "drafter", "int8"),
            ("heads", "heads", "fp32"),
            ("lattice", "lattice", "fp32"),
        ):
            self.folders[name] = data / name
            pack(data / f"{file}.pt", data, data / name, kind)
        words = make_dictionary()
        random_tables().save(data / "lattice" / TABLES, words, words, {"command": "test"})
        self.known: dict[str, Found] = {}

    def heads(self, folder: Path) -> bool:
        return folder.name == "heads"

    def doors(self, name: str) -> list[Callable[[Path, Made, random.Random], Found]]:
        if name == "lattice":
            return [by_lattice, by_lattice, packing]
        return [as_drafter] if name == "drafter" else [python, python, python, command, packing]


def changes_of(name: str) -> tuple[Callable[[Forged, random.Random], bool], ...]:
    """The changes of a folder; those of tables are as many as all others of a lattice's."""
    return (*CHANGES, *[a_table] * len(CHANGES)) if name == "lattice" else CHANGES


SENTENCES = (CheckpointError, NonFiniteError, FileNotFoundError, SystemExit, ValueError)
# Errors of fairseq about dictionaries, and of PyTorch about parameters that do not fit the options of their own file.
STOCK = (RuntimeError, AssertionError, KeyError, OSError, UnicodeError)


def case(seed: int, made: Made, place: Path) -> str:
    """Forges and loads one folder; the end of it, for the count."""
    chance = random.Random(seed)
    name = chance.choice(["fp32", "fp32", "int8", "int8", "drafter", "heads", "lattice"])
    folder = place / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made.folders[name], folder)
    forged, changes = (
        Forged(folder),
        [chance.choice(changes_of(name)) for _ in range(chance.choice([1, 1, 1, 2]))],
    )
    free = False
    for change in changes:
        with contextlib.suppress(
            LookupError, TypeError, ZeroDivisionError, ValueError, OverflowError
        ):
            free |= change(forged, chance)  # the second of two finds the first's
    forged.write(anew=chance.random() < 0.95)
    door, how = chance.choice(made.doors(name)), random.Random(seed)
    own = copy.copy(how)
    titles = "+".join(change.__name__ for change in changes)
    try:
        found = door(folder, made, how)
    except SENTENCES as error:
        assert "Traceback" not in str(error)
        return f"refused at {door.__name__}"
    except STOCK as error:
        # What stock fairseq says of a checkpoint or a dictionary that does not hold together.
        assert {"other_model", "table"} & set(titles.split("+")), f"{titles}: {error!r}"
        return f"stock's {type(error).__name__}"
    if not free:
        expected = door(made.folders[name], made, own)
        assert found == expected, f"{titles} at {door.__name__} gives other outputs"
    return f"decoded at {door.__name__}"


def main(first: int, seconds: float, libraries: str = "") -> None:
    if libraries:
        library.FOLDER = Path(libraries).resolve()
        library.kernels.cache_clear()
    assert library.kernels() is not None
    torch.set_num_threads(1)
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        made = Made(Path(place))
        (Path(place) / "case").mkdir()
        end = time.monotonic() + seconds
        for seed in itertools.count(first):
            print(seed, end="\r", flush=True)  # of a case that ends the process
            ends[case(seed, made, Path(place) / "case")] += 1
            if time.monotonic() >= end:
                break
    print(f"{sum(ends.values())} forged folders: {dict(ends)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
