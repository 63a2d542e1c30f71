"""scripts/recipes/lattice/tables_cost.py at a size that takes seconds."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.recipes.lattice import tables_cost as lattice_tables_cost


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return vars(lattice_tables_cost)


def test_cost_of_making_and_using(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--pairs", "150", "--types", "120", "--length", "8"]
    output = tmp_path / "cost"
    script["main"]([*sizes, "--work", str(tmp_path / "data"), "--output", str(output)])
    found = json.loads(output.with_suffix(".json").read_text())["results"]
    assert found["alignment, s"] > 0
    assert 0 < found["tables, peak memory, GiB"] < 8
    assert found["size on disk, MiB"] > 0
    assert (tmp_path / "data" / "lattice.src-tgt" / "header.json").exists()
    assert f"{found['tables, s']:.3g}" in output.with_suffix(".md").read_text()
    assert "| tables, s |" in capsys.readouterr().out


def test_a_command_that_fails_is_not_measured(script: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        script["make_tables"](tmp_path)


def test_pairs_are_translations(script: dict[str, Any]) -> None:
    """Frequent words first, most target words in the lexicon of the source, the same pairs from the same seed."""
    drawn = [script["Language"](500, 20.0, 3).pair() for _ in range(2)]
    for one, two in zip(*drawn, strict=True):
        assert np.array_equal(one, two)
    language = script["Language"](500, 20.0, 3)
    first, pairs = language.first, [language.pair() for _ in range(300)]
    known = [np.isin(target, language.lexicon[source - first]).mean() for source, target in pairs]
    assert np.mean(known) > 0.85
    words = np.concatenate([source for source, _ in pairs])
    assert words.min() >= first
    assert words.max() < 500
    counts = np.bincount(words, minlength=500)[first:]
    assert counts[:10].sum() > counts[10:60].sum() / 2
    assert 18 < np.mean([len(source) for source, _ in pairs]) < 22
    assert min(len(target) for _, target in pairs) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--pairs", "0"], "--pairs"), (["--types", "5"], "--types is 5")],
)
def test_sizes_are_checked(
    script: dict[str, Any],
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        script["main"]([*options, "--output", str(tmp_path / "x")])
    assert message in capsys.readouterr().err
