"""The blocks of README are run as they are printed, in a folder that is not the checkout, on a stock checkpoint.

An invisible comment before each block of a program says ``run`` or why it is not.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.cli.commands import ROOT, Result, Trained

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = ("sh", "python")
BLOCKS = re.findall(r"(?:<!-- (.*?) -->\n)?```(\w+)\n(.*?)```", README, re.DOTALL)
RUN = [(language, code) for mark, language, code in BLOCKS if mark == "run"]


def test_every_block_says_whether_it_is_run() -> None:
    assert len(RUN) >= 3
    assert {language for _, language, _ in BLOCKS} <= set(PROGRAMS)
    for mark, _, code in BLOCKS:
        assert mark == "run" or mark.startswith("not run here: "), code


@pytest.fixture
def folder(trained: Trained, tmp_path: Path) -> Path:
    """What the blocks speak of: data-bin, model.pt, sentences.txt."""
    (tmp_path / "data-bin").symlink_to(trained.data)
    (tmp_path / "model.pt").symlink_to(trained.checkpoint)
    (tmp_path / "sentences.txt").write_text("\n".join(trained.source()[:3]) + "\n")
    return tmp_path


def run(language: str, code: str, folder: Path) -> str:
    """What a block prints; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = os.pathsep.join([str(Path(warm.python()).parent), os.environ["PATH"]])
    program = ["bash", "-euo", "pipefail", "-c"] if language == "sh" else [warm.python(), "-c"]
    done = subprocess.run(
        [*program, code], cwd=folder, env=environment, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("language", "code"), RUN, ids=[code.split()[0] for _, code in RUN])
def test_block(language: str, code: str, folder: Path, trained: Trained) -> None:
    printed = run(language, code, folder)
    if language == "python":
        assert re.fullmatch(r"\['.*'\]\n", printed)
        return
    number = len(trained.source())
    hypotheses = len(re.findall(r"^H-", printed, re.MULTILINE))
    sets = len(re.findall(r"generate data-bin", code))
    assert hypotheses == number * sets + 3 * code.count("aggdec-interactive")
    if "fairseq-generate" in code:
        stock = trained.generate("stock", "--beam", "5", "--max-len-b", "200")
        assert Result(printed, []).texts() == stock.texts()
    if "aggdec audit" in code:  # sentences, equal, ties, BUGs
        assert f"| beam 5, batch 32, fp32 | {number} | {number} | 0 | 0 |" in printed
    assert ("aggdec doctor" in code) == ("\n  advice " in printed)


def test_the_printed_option_joins_pieces(folder: Path) -> None:
    """Models of sentencepiece write pieces, in stock fairseq too; README prints the option that joins them."""
    option = "--remove-bpe sentencepiece"
    use = next(code for _, code in RUN if "--decoding iad" in code)
    assert option in use and "--decoding stock" in use
    shipped = ROOT / "checkpoints" / "ua_gec"
    model = f"--path {shipped}/checkpoint.pt --source-lang src --target-lang tgt --cpu --beam 1"
    command = f"echo '▁Це ▁добре ▁.' | aggdec-interactive {shipped} {model}"
    for more, wanted in (("", "▁Це ▁добре ▁."), (option, "Це добре .")):
        (text,) = Result(run("sh", f"{command} {more}", folder), []).texts().values()
        assert text == wanted
