"""The examples run from the top of a checkout, as their page says, and print what the package gives."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
OUTPUT = "Я знаю , що ти тут ."
NEEDED = {"pandas_column": "pandas"}


def run(*arguments: str) -> str:
    done = subprocess.run([warm.python(), *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["plain_text", "n_best", "own_drafter", "pandas_column"])
def test_an_example(name: str) -> None:
    module = NEEDED.get(name, "torch")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    shown = run(f"examples/{name}.py")
    assert OUTPUT in shown
    assert "False" not in shown  # own_drafter.py: the outputs are equal


def test_the_notebook() -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert OUTPUT in run("-c", code)


def test_every_example_is_on_the_page() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or f"]({path.name})" in page
        if path.suffix == ".py":
            compile(path.read_text(encoding="utf-8"), path.name, "exec")
