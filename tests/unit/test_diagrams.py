"""docs/assets has the pictures that scripts/diagrams.py draws: real text, a title, colours for dark mode too."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from scripts import diagrams

REAL = "drafting"  # needs the shipped model: tests/cli/test_readme.py draws it


@pytest.mark.parametrize("name", [name for name in diagrams.PICTURES if name != REAL])
def test_a_picture_is_up_to_date(name: str) -> None:
    written = (diagrams.ASSETS / f"{name}.svg").read_text(encoding="utf-8")
    assert written == diagrams.PICTURES[name](), "python -m scripts.diagrams"


@pytest.mark.parametrize("name", diagrams.PICTURES)
def test_a_picture_can_be_read(name: str) -> None:
    written = (diagrams.ASSETS / f"{name}.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(written).attrib["role"] == "img"
    assert f'<title id="{name}-title">' in written and "prefers-color-scheme: dark" in written
    assert "<path" not in written  # text is text


def test_every_picture_has_a_drawing() -> None:
    assert {path.stem for path in diagrams.ASSETS.glob("*.svg")} == set(diagrams.PICTURES)
