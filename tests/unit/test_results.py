"""Result files: names kept whole, whole or not there, places that cannot be written known before the work."""

from __future__ import annotations

import os
import resource
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairseq_aggdec.records import machine, results
from fairseq_aggdec.records.results import (
    cell,
    check_counts,
    check_place,
    refusals,
    write_table,
    write_text,
)
from fairseq_aggdec.stored.loading import CheckpointError

LIMIT = 2000  # bytes


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may become larger than LIMIT: writing ends as it does on a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_changes_are_committed_before_results_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr(machine, "commit", lambda: "0123abc+")
    check_place("--output", tmp_path / "try", ".json")
    with pytest.raises(SystemExit, match="commit your changes, or write elsewhere"):
        check_place("--output", tmp_path / "published" / "speed", ".json")
    monkeypatch.setattr(machine, "commit", lambda: "0123abc")
    check_place("--output", tmp_path / "published" / "speed", ".json")


def test_names_are_kept_whole(tmp_path: Path) -> None:
    for version in ("v1.2", "v1.3"):
        write_table(tmp_path / version, version, "command", "table", [])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"v1.2.json", "v1.2.md", "v1.3.json", "v1.3.md"}
    assert "v1.2" in (tmp_path / "v1.2.json").read_text()


def test_a_full_disk_leaves_the_older_result(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.md"
    write_text(path, "older")
    with full_disk(), pytest.raises(OSError, match="too large"):
        write_text(path, "x" * (LIMIT + 1))
    assert path.read_text() == "older"
    assert [found.name for found in path.parent.iterdir()] == ["result.md"]
    write_text(path, "newer")
    assert path.read_text() == "newer"


def test_tables_are_written_aside(tmp_path: Path) -> None:
    def all_of_them() -> None:
        write_table(tmp_path / "table", "title", "c" * 2 * LIMIT, "table", [])

    with full_disk(), pytest.raises(OSError, match="too large"):
        all_of_them()
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder.md").mkdir()
    for path, endings, reason in (
        (tmp_path / "file" / "result", (".json",), "Not a directory"),
        (tmp_path / "folder", (".json", ".md"), "folder.md is a folder"),
        (tmp_path, (), "is a folder"),
        (Path("/proc/none/result"), (), "No such file"),
    ):
        with pytest.raises(SystemExit, match=rf"^error: --output {path} cannot be .*{reason}"):
            check_place("--output", path, *endings)
    before = sorted(path.name for path in tmp_path.iterdir())
    check_place("--output", tmp_path / "new" / "folder" / "result", ".json")
    check_place("--output", tmp_path / "file")
    check_place("--output", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SystemExit, match="Permission denied"):
        check_place("--output", tmp_path / "new" / "result", ".json")


def test_counts_below_1_are_named() -> None:
    args = Namespace(limit=None, batch_sizes=[8, 0], repeats=1)
    check_counts(args, "limit", "repeats")
    with pytest.raises(SystemExit, match="error: --batch-sizes 0: it must be at least 1"):
        check_counts(args, "limit", "batch_sizes")


def test_refusals_are_one_line() -> None:
    for error in (CheckpointError("a\nb"), ValueError("a\n  b"), FileNotFoundError("a b")):
        with pytest.raises(SystemExit, match=r"^error: a b$"), refusals():
            raise error
    with pytest.raises(KeyError), refusals():
        raise KeyError("a fault of ours")


def test_cells_keep_their_columns() -> None:
    assert cell("a|b\nc") == r"a\|b c"
