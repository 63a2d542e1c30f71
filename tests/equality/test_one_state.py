"""A model is one state of its files: whatever happens to them, no output has numbers of two models."""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec import from_pretrained
from fairseq_aggdec.cli import fairseq_commands
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.packed.files import CHECKPOINT
from fairseq_aggdec.stored import loading
from fairseq_aggdec.stored.held_files import HANDLES
from fairseq_aggdec.stored.loading import CheckpointError
from scripts import random_models
from tests.support import make_dictionary
from tests.unit.test_one_copy import SMALL

pytestmark = pytest.mark.skipif(kernels() is None, reason="there are no compiled kernels")
SYMBOLS = make_dictionary().symbols[4:]
LINES = [" ".join(random.Random(n).choices(SYMBOLS, k=3 + n)) for n in range(3)]
SEARCH = {"max_len_b": 8, "min_len": 4, "device": "cpu", "decoding": "greedy"}
WRITTEN = "was written to after it was loaded"


def write_model(place: Path, seed: int) -> Path:
    """A checkpoint and dictionaries, the order of which is that of the seed."""
    place.mkdir()
    dictionary = make_dictionary()
    order = dictionary.symbols[4:]
    random.Random(seed).shuffle(order)
    lines = "".join(f"{symbol} 1\n" for symbol in order)
    for language in (random_models.SOURCE, random_models.TARGET):
        (place / f"dict.{language}.txt").write_text(lines)
    flags = *SMALL, "--share-all-embeddings"
    random_models.write_checkpoint(place / "model.pt", place, "transformer", *flags, seed=seed)
    return place / "model.pt"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models and their folders: other weights, other dictionaries of the same size."""
    place, found = tmp_path_factory.mktemp("models"), {}
    for seed, name in enumerate(("one", "other")):
        model = write_model(place / f"{name}-plain", seed + 1)
        pack(model, model.parent, place / name, "int8")
        found |= {name: place / name, f"{name}-plain": place / f"{name}-plain"}
    flags = ["--block-size", "4", "--share-decoder-input-output-embed"]
    for seed, name in enumerate(("drafter", "other-drafter")):
        data, file = place / "one-plain", place / f"{name}.pt"
        random_models.write_checkpoint(file, data, "nar_drafter", *SMALL, *flags, seed=seed + 5)
        pack(file, data, place / name, "int8")
        found[name] = place / name
    return found


def found_by(folder: Path, **options: Any) -> list[Any]:
    return from_pretrained(folder, None, **SEARCH | options).generate(LINES)


def in_place(folder: Path, other: Path) -> None:
    """``cp -r OTHER/. FOLDER``: the same files get other contents."""
    for path in sorted(other.iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())


def renamed(folder: Path, other: Path) -> None:
    """Another folder gets the name."""
    shutil.copytree(other, folder.with_name("new"))
    folder.rename(folder.with_name("old"))
    folder.with_name("new").rename(folder)


def file_by_file(folder: Path, other: Path) -> None:
    """Each file is written beside and renamed."""
    for path in sorted(other.iterdir()):
        shutil.copyfile(path, folder / "new")
        (folder / "new").replace(folder / path.name)


REPLACED: dict[str, Callable[[Path, Path], None]] = {
    "in place": in_place,
    "renamed": renamed,
    "file by file": file_by_file,
}


@pytest.fixture
def folder(made: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made["one"], tmp_path / "packed"))


@pytest.mark.parametrize("options", [{}, {"decoding": "beam", "beam": 2}, {"decoding": "stock"}])
def test_a_folder_that_is_written_to_ends_decoding(
    made: dict[str, Path], folder: Path, options: dict[str, Any]
) -> None:
    translator = from_pretrained(folder, None, **SEARCH | options)
    assert translator.translate(LINES)
    in_place(folder, made["other"])
    for _ in range(2):
        with pytest.raises(CheckpointError, match=WRITTEN):
            translator.translate(LINES)
    with pytest.raises(CheckpointError, match=WRITTEN):
        translator.score(LINES, LINES)


def test_a_drafter_that_is_written_to_ends_decoding(made: dict[str, Path], tmp_path: Path) -> None:
    drafter = shutil.copytree(made["drafter"], tmp_path / "drafter")
    how = SEARCH | {"decoding": "gad", "draft_tokens": "3", "drafter_path": drafter}
    translator = from_pretrained(made["one"], None, **how)
    assert translator.translate(LINES)
    in_place(drafter, made["other-drafter"])
    with pytest.raises(CheckpointError, match=WRITTEN):
        translator.translate(LINES)


def times_set(folder: Path, other: Path) -> None:
    for path in folder.iterdir():
        os.utime(path)


def removed(folder: Path, other: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("change", [renamed, file_by_file, times_set, removed])
def test_a_running_model_stays_what_it_was(
    made: dict[str, Path], folder: Path, change: Callable[[Path, Path], None]
) -> None:
    translator = from_pretrained(folder, None, **SEARCH)
    expected = translator.generate(LINES)
    change(folder, made["other"])
    assert translator.generate(LINES) == expected
    assert translator.generate(LINES) == expected


@pytest.mark.parametrize("way", ["in place", "beside"])
def test_a_mapped_checkpoint(
    made: dict[str, Path], tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder: any large one."""
    monkeypatch.setattr(loading, "MAPPED_FROM", 0)
    plain = shutil.copytree(made["one-plain"], tmp_path / "plain")
    translator = from_pretrained(plain / "model.pt", plain, **SEARCH)
    expected, other = translator.generate(LINES), made["other-plain"] / "model.pt"
    if way == "beside":
        shutil.copyfile(other, plain / "new")
        (plain / "new").replace(plain / "model.pt")
        assert translator.generate(LINES) == expected
        return
    (plain / "model.pt").write_bytes(other.read_bytes())
    with pytest.raises(CheckpointError, match=WRITTEN):
        translator.generate(LINES)


class Opens:
    """Counts what Python opens of a folder, and does something at one of these opens."""

    def __init__(self) -> None:
        self.folder, self.count, self.at = "", 0, -1
        self.names: set[str] = set()
        self.act: Callable[[], None] = lambda: None
        sys.addaudithook(self._heard)

    def watch(self, folder: Path, at: int, act: Callable[[], None]) -> None:
        self.names = {path.name for path in folder.iterdir()}
        self.folder, self.count, self.at, self.act = str(folder), 0, at, act

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if event != "open" or not self.folder or not isinstance(given[0], str):
            return
        name = given[0]
        if name in self.names or name.startswith((self.folder, HANDLES)):
            self.count += 1
            if self.count == self.at:
                folder, self.folder = self.folder, ""
                self.act()
                self.folder = folder


@pytest.fixture(scope="module")
def opens() -> Iterator[Opens]:
    found = Opens()
    yield found
    found.folder = ""


def command(folder: Path) -> list[str]:
    """Lines of ``aggdec-generate`` with the folder as data and as model."""
    side = f"{random_models.SOURCE}-{random_models.TARGET}.{random_models.SOURCE}"
    text = folder.parent / f"text.{side}"
    text.write_text("".join(f"{line}\n" for line in LINES))
    if not (folder / f"test.{side}").exists():
        os.symlink(text, folder / f"test.{side}")
    given = [str(folder), "--path", str(folder), "--gen-subset", "test", "--dataset-impl", "raw"]
    given += ["-s", random_models.SOURCE, "-t", random_models.TARGET, "--cpu", "--beam", "1"]
    given += ["--max-len-b", "8", "--min-len", "4", "--decoding", "greedy"]
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["aggdec-generate", *given])
        patched.setattr("sys.stdout", out)
        status = fairseq_commands.generate()
    if status:
        raise CheckpointError(f"status {status}")
    return [line for line in out.getvalue().splitlines() if line[:2] in ("H-", "P-")]


@pytest.mark.parametrize("door", [found_by, command])
@pytest.mark.parametrize("way", REPLACED)
def test_a_folder_that_is_replaced_while_it_is_loaded(
    made: dict[str, Path],
    tmp_path: Path,
    opens: Opens,
    door: Callable[[Path], list[Any]],
    way: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Between every two opens: the outputs are those of one of the two models, or there are none."""
    place = tmp_path / "place"

    def fresh(name: str) -> Path:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return Path(shutil.copytree(made[name], place / "packed"))

    known = [door(fresh(name)) for name in ("one", "other")]
    assert known[0] != known[1]
    folder = fresh("one")
    opens.watch(folder, -1, lambda: None)
    door(folder)
    count, ends = opens.count, []
    assert count > 10
    step = 1 if door is found_by and way != "file by file" else 4
    for at in range(1, count + 1, step):
        folder = fresh("one")
        opens.watch(folder, at, lambda: REPLACED[way](place / "packed", made["other"]))
        try:
            found = door(folder)
        except (CheckpointError, FileNotFoundError, ValueError):
            ends.append("refused")
            continue
        finally:
            opens.folder = ""
        assert found in known, f"open {at} of {count}"
        ends.append("one of the two")
    assert {"refused"} <= {*ends}


def test_packing_leaves_no_part_of_a_folder(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written beside its name: who looks meanwhile finds nothing, or all of it."""
    from fairseq_aggdec.convert import pack as packing

    out, plain = tmp_path / "out", made["one-plain"]

    def stopped(*_: Any) -> int:
        assert not out.exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(packing, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            pack(plain / "model.pt", plain, out, "int8")
    assert not out.exists()
    pack(plain / "model.pt", plain, out, "int8")
    assert (out / CHECKPOINT).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
