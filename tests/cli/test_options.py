"""``python -m fairseq_aggdec`` shows what fairseq's ``--help`` does not: options of tasks, models and criterions."""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from unittest import mock

from fairseq_aggdec.methods.config import DecodingConfig
from scripts import options_page

ROOT = Path(__file__).resolve().parents[2]


def options(*arguments: str) -> tuple[str, object]:
    """What the module prints as a program, in this process, and what it ends with."""
    shown, status = io.StringIO(), None
    with mock.patch.object(sys, "argv", ["fairseq_aggdec", *arguments]), redirect_stdout(shown):
        try:
            runpy.run_module("fairseq_aggdec", run_name="__main__")
        except SystemExit as end:
            status = end.code
    return shown.getvalue(), status


def test_every_option_is_there_with_its_default() -> None:
    found, status = options()
    assert status is None
    for field in fields(DecodingConfig):
        if "help" in field.metadata:
            assert f"  --{field.name.replace('_', '-')} " in found
    words = " ".join(found.split())
    assert (
        "--lattice FOLDER lattice, --shortlist: folder of tables made by aggdec lattice-tables (default: lattice."
        in words
    )
    assert "tokens drafted at once, k (default: 10)" in words  # an option of two architectures
    assert "tokens predicted at once (default: 8)" in words
    assert found.count("  --drafter-path ") == 1  # an option of two tasks
    for heading in (
        "--task translation_aggdec:",
        "--arch lattice_transformer:",
        "--criterion glancing_loss:",
    ):
        assert heading in found
    assert "--encoder-layers" not in found  # stock options are fairseq's to show


def test_arguments_are_refused() -> None:
    _, status = options("--decoding", "iad")
    assert isinstance(status, str) and "takes no arguments" in status  # shown, with exit status 1


def test_the_page_of_options_is_up_to_date() -> None:
    written = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert written == options_page.page(), "python -m scripts.options_page > docs/options.md"
    for field in fields(DecodingConfig):
        if "help" in field.metadata:
            assert f"\n| `--{field.name.replace('_', '-')}" in written
