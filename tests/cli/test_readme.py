"""The blocks of README are run as they are printed, in a folder that is not the checkout, on a stock checkpoint.

An invisible comment before each block of a program says ``run`` or why it is not. A block ``text`` is what the block
before it prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

from scripts import diagrams
from tests import warm
from tests.cli.commands import ROOT, Result, Trained

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = ("sh", "python")
FOUND = re.findall(r"(?:<!-- (.*?) -->\n)?```(\w+)\n(.*?)```", README, re.DOTALL)
BLOCKS = [block for block in FOUND if block[1] in PROGRAMS]
RUN = [(language, code) for mark, language, code in BLOCKS if mark == "run"]
PRINTED = {
    code: shown
    for (_, _, code), (_, language, shown) in pairwise(FOUND)
    if language not in PROGRAMS
}


def test_every_block_says_whether_it_is_run() -> None:
    assert len(RUN) >= 3
    assert {language for _, language, _ in FOUND} <= {*PROGRAMS, "text"}
    for mark, _, code in BLOCKS:
        assert mark == "run" or mark.startswith("not run here: "), code


@pytest.fixture
def folder(trained: Trained, tmp_path: Path) -> Path:
    """What the blocks speak of: checkpoints, data-bin, model.pt, sentences.txt."""
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    (tmp_path / "data-bin").symlink_to(trained.data)
    (tmp_path / "model.pt").symlink_to(trained.checkpoint)
    (tmp_path / "sentences.txt").write_text("\n".join(trained.source()[:3]) + "\n")
    return tmp_path


def run(language: str, code: str, folder: Path) -> str:
    """What a block prints; it must succeed, and leave an empty home empty."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = os.pathsep.join([str(Path(warm.python()).parent), os.environ["PATH"]])
    program = ["bash", "-euo", "pipefail", "-c"] if language == "sh" else [warm.python(), "-c"]
    with tempfile.TemporaryDirectory() as home:
        environment["HOME"] = home
        done = subprocess.run(
            [*program, code],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        left = os.listdir(home)
    assert (done.returncode, left) == (0, []), done.stderr
    return done.stdout


@pytest.mark.parametrize(("language", "code"), RUN, ids=[code.split()[0] for _, code in RUN])
def test_block(language: str, code: str, folder: Path, trained: Trained) -> None:
    printed = run(language, code, folder)
    if code in PRINTED:
        assert printed == PRINTED[code]
        return
    if language == "python":
        assert re.fullmatch(r"\['.*'\]\n", printed)
        return
    number = len(trained.source())
    hypotheses = len(re.findall(r"^H-", printed, re.MULTILINE))
    sets = len(re.findall(r"generate data-bin", code))
    assert hypotheses == number * sets + 3 * code.count("< sentences.txt")
    if "fairseq-generate" in code:
        stock = trained.generate("stock", "--beam", "5", "--max-len-b", "200")
        first = printed.partition("Generate test")[0]  # the command before it writes this line last
        assert Result(first, []).texts() == stock.texts()
    if "aggdec audit" in code:  # sentences, equal, ties, BUGs
        assert f"| beam 5, batch 32, fp32 | {number} | {number} | 0 | 0 |" in printed
    assert ("aggdec doctor" in code) == ("\n  advice " in printed)


def test_the_printed_option_joins_pieces(folder: Path) -> None:
    """Models of sentencepiece write pieces, in stock fairseq too; README prints the option that joins them."""
    option = "--remove-bpe sentencepiece"
    assert any(option in code and "--decoding stock" in code for _, code in RUN)
    shipped = ROOT / "checkpoints" / "ua_gec"
    model = f"--path {shipped}/checkpoint.pt --source-lang src --target-lang tgt --cpu --beam 1"
    command = f"echo '▁Це ▁добре ▁.' | aggdec-interactive {shipped} {model}"
    for more, wanted in (("", "▁Це ▁добре ▁."), (option, "Це добре .")):
        (text,) = Result(run("sh", f"{command} {more}", folder), []).texts().values()
        assert text == wanted


def test_the_picture_of_drafting_is_what_the_model_does() -> None:
    written = (diagrams.ASSETS / "drafting.svg").read_text(encoding="utf-8")
    assert written == diagrams.drafting(), "python -m scripts.diagrams drafting"
    (calls, tokens) = re.search(r">(\d+) calls of the decoder instead of (\d+)<", written).groups()  # type: ignore[union-attr]
    assert f"{calls} calls, not {tokens}](docs/assets/drafting.svg)" in README


def test_the_demo_runs(tmp_path: Path) -> None:
    """Without a path to the checkout in the environment, as after a clone."""
    page = tmp_path / "report.html"
    settings = {"PYTHON": sys.executable, "LIMIT": "4", "REPORT": str(page)}
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = ["bash", "scripts/demo.sh"]
    done = subprocess.run(
        command, cwd=ROOT, env=variables | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "F0.5" in done.stdout and "BLEU" not in done.stdout
    assert done.stdout.count("0 of 4") == 3 and page.stat().st_size > 1000
