"""``aggdec convert``, and the commands that it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec.cli import main, refusals
from tests import hugging_face_folders as folders

pytest.importorskip("transformers")
SEEDS = {"marian": 4, "nllb": 2}
LENGTH = 14


def expected(kind: str, model: Any, tokenizer: Any) -> list[str]:
    """Texts of transformers."""
    forced = None
    if kind in folders.PAIRS:
        forced = tokenizer.convert_tokens_to_ids(folders.PAIRS[kind][1])
    batch = tokenizer(folders.LINES, return_tensors="pt", padding=True)
    rows = model.generate(
        **batch,
        forced_bos_token_id=forced,
        max_new_tokens=LENGTH + 1,
        min_new_tokens=1,
        suppress_tokens=[tokenizer.pad_token_id],
        forced_eos_token_id=tokenizer.eos_token_id,
    )
    special = {*tokenizer.all_special_ids, *range(len(tokenizer), model.config.vocab_size)}
    texts = [
        tokenizer.convert_ids_to_tokens([t for t in row if t not in special])
        for row in rows.tolist()
    ]
    return ["".join(text).replace("▁", " ").strip() for text in texts]


def decoded(command: str) -> list[str]:
    """What a printed command writes for the lines."""
    bin = Path(sys.executable).parent
    found = subprocess.run(
        ["bash", "-c", f'PATH="{bin}:$PATH"; {command} --max-len-b {LENGTH}'],
        input="\n".join(folders.LINES) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    texts = re.findall(r"^D-\d+\t\S+\t(.*)$", found.stdout, re.MULTILINE)
    # The tokenizer of transformers leaves out all special symbols; random models write them too.
    special = r"__[a-z]{3}_[A-Z][a-z]{3}__|<unk>|<mask>|madeupword\d+"
    return [re.sub(special, "", text).strip() for text in texts]


@pytest.mark.parametrize("kind", SEEDS)
def test_the_printed_commands_decode(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock fairseq reads a multilingual model alone, and one with Marian's activation with ``--user-dir``."""
    monkeypatch.setattr(sys, "argv", sys.argv)  # a tool sets it
    model, tokenizer = folders.make(kind, tmp_path / "hf", SEEDS[kind])
    languages = zip(("--source-lang", "--target-lang"), folders.PAIRS.get(kind, ()), strict=False)
    options = [word for pair in languages for word in pair]
    assert main.run_tool("convert", [str(tmp_path / "hf"), str(tmp_path / "out"), *options]) == 0
    shown = capsys.readouterr().out
    plain, ours = re.findall(r"^  (\S+-interactive .*)$", shown, re.MULTILINE)
    assert plain.startswith("fairseq-interactive ") and ours.startswith("aggdec-interactive ")
    assert ("--user-dir" in plain) == (kind == "marian") == ("swish" in shown)
    texts = expected(kind, model, tokenizer)
    assert len(set(texts)) > 2
    assert decoded(plain) == decoded(ours) == texts


def test_a_refusal_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, output, says in (
        (tmp_path / "none", tmp_path / "out", f"there is no {tmp_path / 'none'}"),
        (tmp_path, tmp_path / "out", "it has no config.json"),
        (tmp_path, tmp_path, f"{tmp_path} exists: name a new folder"),
    ):
        assert main.run_tool("convert", [str(folder), str(output)]) == refusals.REFUSED
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("aggdec convert: error: ") and says in line
