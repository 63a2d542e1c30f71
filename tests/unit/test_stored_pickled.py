"""What PyTorch before 2.10 does not check of a checkpoint is checked before it reads one."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_aggdec.stored import loading, pickled
from fairseq_aggdec.stored.loading import CheckpointError
from fairseq_aggdec.stored.pickled import check_pickled, read_through

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints" / "ua_gec"
PLAIN: dict[str, Any] = {
    "model": OrderedDict(weight=torch.arange(6.0).view(2, 3), half=torch.ones(3).half()),
    "cfg": OmegaConf.create({"model": {"layers": [1, 2]}}),
    "counts": (Counter("aab"), defaultdict(list, {1: [2]}), {3}, b"4"),
    "empty": torch.zeros(0),
    "raw": torch.arange(5).untyped_storage(),
}


class Setting:
    """Pickles a tensor and then sets an item of it."""

    def __init__(self, whole: Any, items: int):
        self.whole, self.items = whole, items

    def __reduce__(self) -> tuple[Any, ...]:
        items = iter([((place, 0), 9.0) for place in range(self.items)])
        function, arguments = self.whole.__reduce_ex__(2)
        return function, arguments, None, None, items


def stored(value: Any, path: Path, old: bool = False) -> str:
    torch.save(value, path, _use_new_zipfile_serialization=not old)
    return str(path)


def with_records(path: Path, change: Any) -> str:
    """The archive in another file, each record changed by ``change(name, content)``."""
    new = path.with_name("changed.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w") as archive:
        for name in old.namelist():
            archive.writestr(name, change(name, old.read(name)))
    return str(new)


@pytest.mark.parametrize("old", [False, True])
def test_what_training_writes_passes(tmp_path: Path, old: bool) -> None:
    read_through(stored(PLAIN, tmp_path / "a.pt", old))


def test_a_shipped_checkpoint_passes() -> None:
    read_through(str(SHIPPED / "checkpoint.pt"))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("items", [1, 2])
def test_no_item_of_a_tensor_is_set(tmp_path: Path, items: int, old: bool) -> None:
    path = stored({"model": Setting(torch.zeros(2, 2), items)}, tmp_path / "a.pt", old)
    with pytest.raises(CheckpointError, match="it sets items of what is no dictionary"):
        read_through(path)


def test_a_storage_is_as_long_as_its_record(tmp_path: Path) -> None:
    stored({"model": {"a": torch.zeros(16)}}, tmp_path / "a.pt")

    def shorter(name: str, content: bytes) -> bytes:
        return content[:-4] if "/data/" in name else content

    with pytest.raises(CheckpointError, match="it has a tensor of 16 numbers in 60 bytes"):
        read_through(with_records(tmp_path / "a.pt", shorter))


def test_no_size_is_negative(tmp_path: Path) -> None:
    stored({"model": {"a": torch.zeros(16)}}, tmp_path / "a.pt")

    def negative(name: str, content: bytes) -> bytes:
        return content.replace(b"K\x10t", b"J\xf0\xff\xff\xfft")

    with pytest.raises(CheckpointError, match="it has a tensor of -16 numbers in 64 bytes"):
        read_through(with_records(tmp_path / "a.pt", negative))


def test_sparse_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it has a sparse tensor"):
        read_through(stored({"model": {"a": torch.eye(3).to_sparse()}}, tmp_path / "a.pt"))


def test_archives_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(1))
        archive.writestr("b/data.pkl", pickle.dumps(1))
    with pytest.raises(CheckpointError, match="no archive that PyTorch has written"):
        read_through(str(tmp_path / "a.pt"))
    with tarfile.open(tmp_path / "b.pt", "w") as tar:
        tar.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    with pytest.raises(CheckpointError, match=r"of a PyTorch before 0\.1\.10"):
        read_through(str(tmp_path / "b.pt"))


@pytest.mark.parametrize(
    ("release", "checked"), [("2.6.0+cu124", True), ("2.9.1", True), ("2.10.0", False), ("3.0", False)]
)  # fmt: skip
def test_which_pytorch_needs_it(
    release: str, checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(pickled, "read_through", seen.append)
    monkeypatch.setattr(torch, "__version__", release)
    check_pickled("a.pt")
    assert seen == ["a.pt"] * checked


def test_a_checkpoint_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored({"model": Setting(torch.zeros(2, 2), 1)}, tmp_path / "a.pt")
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(CheckpointError, match=r"a\.pt is refused: it sets items of what is no"):
        loading.check_checkpoint(path)
