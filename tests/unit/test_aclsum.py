"""ACLSum's files become aligned text: the marked sentences of each aspect, and its summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.recipes.interleaved import aclsum

PAPER = {
    "summary": {"challenge": "It is  hard .", "approach": "They try .", "outcome": ""},
    "sentences": {"abstract": ["One .", "Two\u2028more ."], "conclusion": ["Three ."]},
    "highlights": {
        "challenge": {"abstract": [0, 1], "conclusion": [1]},
        "approach": {"abstract": [0, 0], "conclusion": [0]},  # nothing is marked
        "outcome": {"abstract": [1, 0], "conclusion": [0]},  # nobody has summarised it
    },
}


def test_a_line_for_each_aspect_with_marks_and_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "aclsum" / "dataset"
    data.mkdir(parents=True)
    (tmp_path / "aclsum" / "__init__.py").write_text("raise ImportError('needs another package')")
    for split in aclsum.SPLITS:
        (data / f"{split}.jsonl").write_text(f"{json.dumps(PAPER)}\n" * 2)
    monkeypatch.syspath_prepend(tmp_path)
    aclsum.main(["--output", str(tmp_path / "text")])
    for split in aclsum.SPLITS:
        read = {
            side: (tmp_path / "text" / f"{split}.{side}").read_text()
            for side in ("source", "target")
        }
        assert read == {"source": "Two more . Three .\n" * 2, "target": "It is hard .\n" * 2}


def test_without_the_package_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aclsum.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps aclsum"):
        aclsum.main(["--output", str(tmp_path)])
    assert not list(tmp_path.iterdir())
