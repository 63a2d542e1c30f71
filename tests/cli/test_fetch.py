"""Downloads of the recipes: what arrives is what arrived before, or what a list of checksums says."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.commands import ROOT

TEXT = "a line\n"


def fetch(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Downloads ``folder/there`` to ``folder/raw/file.txt``."""
    common = ROOT / "scripts" / "recipes" / "common.sh"
    script = f"set -euo pipefail; . {common}; fetch {folder}/raw/file.txt file://{folder}/there"
    return subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "there").write_text(TEXT)
    return tmp_path


def test_a_file_that_changed_upstream_is_refused(folder: Path) -> None:
    done, file = fetch(folder), folder / "raw" / "file.txt"
    assert done.returncode == 0, done.stderr
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    assert (folder / "raw" / "SHA256SUMS").read_text() == f"{digest}  file.txt\n"
    file.unlink()
    (folder / "there").write_text("another line\n")
    done = fetch(folder)
    assert done.returncode == 2
    assert f"not {digest} as" in done.stderr
    assert not file.exists()
    (folder / "raw" / "file.txt.partial").unlink()
    (folder / "there").write_text(TEXT)
    assert fetch(folder).returncode == 0
    assert file.read_text() == TEXT


def test_a_list_of_ones_own_comes_first(folder: Path) -> None:
    sums = folder / "sums"
    sums.write_text(f"{'0' * 64}  file.txt\n")
    done = fetch(folder, CHECKSUMS=str(sums))
    assert done.returncode == 2
    assert f"as {sums} says" in done.stderr
    assert not (folder / "raw" / "file.txt").exists()
    sums.write_text(f"{hashlib.sha256(TEXT.encode()).hexdigest()} *file.txt\n")
    assert fetch(folder, CHECKSUMS=str(sums)).returncode == 0
    assert (folder / "raw" / "file.txt").read_text() == TEXT
