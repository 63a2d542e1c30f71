"""loading: the plain data of fairseq-train loads in weights-only mode, hidden code is refused."""

from __future__ import annotations

import argparse
import os
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from torch.serialization import clear_safe_globals, get_unsafe_globals_in_checkpoint

from fairseq_aggdec.cli import doctor
from fairseq_aggdec.packed.folder import ModelFiles
from fairseq_aggdec.stored import loading
from fairseq_aggdec.stored.held_files import HeldFile
from fairseq_aggdec.stored.loading import CheckpointError, load_checkpoint

loading.register_safe_globals()

NUMBER_TYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def saved(path: Path, content: object) -> str:
    torch.save(content, path)
    return str(path)


def load(path: str) -> dict:
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("name", NUMBER_TYPES)
def test_numpy_array_and_scalar_load(tmp_path: Path, name: str) -> None:
    array = numpy.array([0, 1, 1], dtype=name)
    for kept in (array, numpy.ones((2, 3), name, order="F"), array[:0], array.reshape(3, 1).T):
        loaded = load(saved(tmp_path / "a.pt", {"counts": kept, "total": array[1]}))
        counts = numpy.asarray(loaded["counts"])
        assert counts.dtype == kept.dtype and numpy.array_equal(counts, kept)
        assert loaded["total"] == array[1] and type(loaded["total"]) is type(array[1])


def rewritten(path: Path, new_path: Path, old: bytes, new: bytes) -> str:
    """A copy of an old-format checkpoint with a module spelled otherwise."""
    content = path.read_bytes()
    assert old in content
    new_path.write_bytes(content.replace(old, new))
    return str(new_path)


@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
def test_spelling_of_either_numpy_loads(tmp_path: Path, module: bytes) -> None:
    content = {"counts": numpy.arange(3), "total": numpy.float64(1.5)}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    written = (
        b"numpy._core.multiarray"
        if int(numpy.__version__.split(".")[0]) > 1
        else b"numpy.core.multiarray"
    )
    loaded = load(rewritten(tmp_path / "a.pt", tmp_path / "b.pt", written, module))
    assert numpy.asarray(loaded["counts"]).tolist() == [0, 1, 2] and loaded["total"] == 1.5


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert (
        loading.check_checkpoint(str(tmp_path / "absent.pt")) is None
    )  # fairseq's own message is clear
    with pytest.raises(FileNotFoundError, match=r"absent\.pt"):
        loading.load_checkpoint(str(tmp_path / "absent.pt"))


def test_pytorch_itself_still_refuses_this_data(tmp_path: Path) -> None:
    """The reason for register_safe_globals. If this fails, PyTorch's own list has grown."""
    path = saved(tmp_path / "a.pt", {"options": argparse.Namespace(), "counts": numpy.arange(2)})
    assert get_unsafe_globals_in_checkpoint(path) == []
    clear_safe_globals()
    try:
        assert {"argparse.Namespace", "numpy.dtype"} <= set(get_unsafe_globals_in_checkpoint(path))
    finally:
        loading.register_safe_globals()


def test_a_name_that_is_not_in_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python has names where the locale is not UTF-8; PyTorch would open no such file by its name."""
    monkeypatch.setattr(loading, "MAPPED_FROM", 0)
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xfc.pt")
    with open(path, "wb") as file:
        torch.save({"cfg": {}, "model": {}}, file)
    with pytest.raises(CheckpointError, match=r"pt has no entry 'optimizer_history'"):
        load_checkpoint(path)


def test_the_sums_of_a_mapped_file_are_compared_by_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file is mapped, and one wrong byte in it is not seen when it is loaded."""
    path = saved(tmp_path / "large.pt", {"weight": torch.ones(1000)})
    content = bytearray(Path(path).read_bytes())
    content[content.index(torch.ones(8).numpy().tobytes())] ^= 1
    Path(path).write_bytes(content)
    with pytest.raises(zipfile.BadZipFile):
        loading.read_stored(HeldFile(path))
    monkeypatch.setattr(loading, "MAPPED_FROM", 0)
    assert loading.read_stored(HeldFile(path))[0]["weight"][0] != 1
    with pytest.raises(CheckpointError, match=r"large\.pt"):
        doctor.sums_of(ModelFiles(path, {"large.pt": HeldFile(path)}))
