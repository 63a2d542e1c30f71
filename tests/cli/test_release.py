"""``scripts/release.sh`` refuses what would make a wrong release, before minutes of work."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_aggdec.version import __version__
from tests.cli.commands import ROOT

NEEDED = ("CHANGELOG.md", "fairseq_aggdec/version.py", "scripts/release.sh")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of what the script looks at, all committed."""
    for name in NEEDED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        named = ["-c", "user.name=a", "-c", "user.email=a@b.c", *command]
        subprocess.run(["git", *named], cwd=tmp_path, check=True)
    return tmp_path


def change(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("changed", encoding="utf-8")


def forget(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("# Changelog\n", encoding="utf-8")
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qam", "b"],
        cwd=checkout,
        check=True,
    )


def make(checkout: Path) -> None:
    (checkout / "dist" / __version__).mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change, "uncommitted changes: a release is made of a commit"),
        (forget, f"CHANGELOG.md has no section [{__version__}]"),
        (make, f"dist/{__version__} is there already"),
    ],
    ids=lambda value: getattr(value, "__name__", "message"),
)
def test_what_cannot_be_released(
    checkout: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(checkout)
    done = subprocess.run(
        ["bash", "scripts/release.sh"], cwd=checkout, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("release: error: ") and message in done.stderr
    assert "building" not in done.stderr
