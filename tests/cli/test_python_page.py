"""The blocks of the pages about Python and serving are run as they are printed, on a model of a stock task."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ROOT, Trained

BLOCKS = {
    page: re.findall(
        r"<!-- (.*?) -->\n```(\w+)\n(.*?)```",
        (ROOT / "docs" / page).read_text(encoding="utf-8"),
        re.DOTALL,
    )
    for page in ("python.md",)
}


def test_every_block_says_whether_it_is_run() -> None:
    for page, blocks in BLOCKS.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert len(blocks) == text.count("```") // 2 > 1, page
        for mark, _, code in blocks:
            assert mark == "run" or mark.startswith("not run here: "), code


@pytest.mark.parametrize(
    "code", [code for mark, _, code in BLOCKS["python.md"] if mark == "run"], ids=["short", "calls"]
)
def test_python(code: str, trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "data-bin").symlink_to(trained.data)
    (tmp_path / "model.pt").symlink_to(trained.checkpoint)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if "on_token" in code:
        best, edited, *told, score = lines
        text = best.rsplit(" ", 2)[0]
        assert told[-1] == f"0 {text}" and edited and float(score) < 0
    else:
        assert re.fullmatch(r"\['.*', '.*'\]", done.stdout.strip())
