"""The pages become a site without a warning, README first and the API from the docstrings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = "pip install -e '.[docs]'"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason=NEEDED)
    pytest.importorskip("mkdocstrings", reason=NEEDED)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, api = (
        (tmp_path / "site" / page).read_text(encoding="utf-8")
        for page in ("index.html", "api/index.html")
    )
    assert "Which method" in first and 'src="assets/drafting.svg"' in first
    for name in ("from_pretrained", "Translator", "Hypothesis", "Drafter", "Verdict"):
        assert re.search(rf'id="fairseq_aggdec\.[\w.]*\.{name}"', api), name
    assert not re.search(r":(class|func|meth|mod):", api)
    found = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text("utf-8"))
    places = {entry["location"].partition("#")[0] for entry in found["docs"]}
    assert "tour/" in places and not any(
        place.startswith("results/") and place != "results/" for place in places
    )
