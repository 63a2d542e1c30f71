"""References from outside: every one is in the list of tests/origins, and what the list names is there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "tests" / "origins" / "README.md").read_text(encoding="utf-8")
DATA = {".txt", ".json", ".gz", ".npz", ".npy", ".tsv", ".csv", ".m2", ".pt"}
# A test that says so compares with something that was made elsewhere.
CLAIMS = re.compile(
    r"(?:the original|as published|published with|EASSE|scorer's manual|tests/origins|of the authors"
    r"|authors' (?:code|script)"
    r"|(?:transformers|sacrebleu|rouge[_-]score|skimage|scikit-image) (?:gives|writes|scores|is the oracle))",
    re.IGNORECASE,
)
OTHER_PROGRAM = re.compile(r"^\| (?:CTranslate2|Hugging Face)", re.MULTILINE)


def test_every_data_file_of_the_tests_is_listed() -> None:
    files = [path for path in (ROOT / "tests").rglob("*") if path.suffix in DATA]
    names = [str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts]
    assert len(names) >= 3
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_every_test_that_claims_an_origin_is_listed() -> None:
    claiming = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if CLAIMS.search(path.read_text(encoding="utf-8"))
    }
    assert len(claiming) > 8
    assert sorted(name for name in claiming if f"`{name}`" not in PAGE) == []


def test_every_table_with_another_program_is_listed() -> None:
    tables = [
        path.name
        for path in sorted((ROOT / "docs" / "results").glob("*.md"))
        if OTHER_PROGRAM.search(path.read_text(encoding="utf-8"))
    ]
    assert len(tables) > 5
    assert [name for name in tables if f"docs/results/{name})" not in PAGE] == []


def test_what_the_list_names_is_there() -> None:
    paths = re.findall(r"`((?:tests|scripts)/[\w./]+)", PAGE)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = re.findall(r"python -m (tests\.[\w.]+)", PAGE)
    assert modules and [name for name in modules if find_spec(name) is None] == []
    links = re.findall(r"\]\(\.\./\.\./([\w./-]+)\)", PAGE)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_row_says_when_and_what() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
    whole = [row for row in rows if len(row) == 6 and row[0].strip() != "reference"]
    assert len(whole) >= 15
    for _, _, _, command, repeated, result in whole:
        assert command.strip() == "none" or re.fullmatch(r" 20\d\d-\d\d-\d\d ", repeated)
        assert command.strip() and result.strip()
