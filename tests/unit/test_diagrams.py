"""docs/assets has pictures with real text, a title, and colours for dark mode; one is drawn from today's results."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import diagrams


def test_the_picture_of_results_is_up_to_date() -> None:
    """``drafting`` needs the shipped model: tests/cli/test_readme.py draws it."""
    written = (diagrams.ASSETS / "speed.svg").read_text(encoding="utf-8")
    assert written == diagrams.PICTURES["speed"](), "python -m scripts.diagrams"


@pytest.mark.parametrize("path", diagrams.ASSETS.glob("*.svg"), ids=lambda path: path.stem)
def test_a_picture_can_be_read(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(written).attrib["role"] == "img"
    assert f'<title id="{path.stem}-title">' in written
    assert "prefers-color-scheme: dark" in written
    assert "<path" not in written  # text is text
