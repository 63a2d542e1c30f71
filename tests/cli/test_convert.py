"""``aggdec convert``, and the commands that it prints."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_aggdec import from_pretrained
from fairseq_aggdec.cli import main, refusals
from fairseq_aggdec.cli.parsers import parsed
from fairseq_aggdec.kernels.library import kernels
from tests import hugging_face_folders as folders
from tests import warm

pytest.importorskip("transformers")
SEEDS = {"marian": 4, "nllb": 2, "mbart": 1}
LENGTH = 14


def generated(model: Any, tokenizer: Any, forced: int | None) -> list[list[int]]:
    """What transformers writes, without special symbols."""
    rows = model.generate(
        **tokenizer(folders.LINES, return_tensors="pt", padding=True),
        forced_bos_token_id=forced,
        max_new_tokens=LENGTH + 1,
        min_new_tokens=1,
        suppress_tokens=[tokenizer.pad_token_id],
        forced_eos_token_id=tokenizer.eos_token_id,
    )
    special = {*tokenizer.all_special_ids, *range(len(tokenizer), model.config.vocab_size)}
    return [[token for token in row if token not in special] for row in rows.tolist()]


def converted(
    kind: str, seed: int, folder: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[Any, Any, dict[str, str]]:
    """A model, its tokenizer and the printed commands by their names."""
    model, tokenizer = folders.make(kind, folder / "hf", seed)
    search = {"num_beams": 1, "max_length": LENGTH + 2}
    (folder / "hf" / "generation_config.json").write_text(json.dumps(search))
    languages = zip(("--source-lang", "--target-lang"), folders.PAIRS.get(kind, ()), strict=False)
    options = [word for pair in languages for word in pair]
    assert main.run_tool("convert", [str(folder / "hf"), str(folder / "out"), *options, *more]) == 0
    shown = capsys.readouterr().out
    assert ("swish" in shown) == (kind == "marian")
    return model, tokenizer, dict(re.findall(r"^(.*):\n  (.*)$", shown, re.MULTILINE))


def output(command: str) -> str:
    """What a printed command writes for the lines."""
    scripts = Path(warm.python()).parent
    found = subprocess.run(
        ["bash", "-c", f'PATH="{scripts}:$PATH"; {command}'],
        input="\n".join(folders.LINES) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


def texts(command: str) -> list[str]:
    found = re.findall(r"^D-\d+\t\S+\t(.*)$", output(command), re.MULTILINE)
    # The tokenizer of transformers leaves out all special symbols; random models write them too.
    special = r"__[a-z]{3}_[A-Z][a-z]{3}__|\[[a-z]{2}_[A-Z]{2}\]|<unk>|<mask>|madeupword\d+"
    return [re.sub(special, "", text).strip() for text in found]


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)  # a tool sets it


@pytest.mark.parametrize("kind", SEEDS)
def test_the_printed_commands_decode(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stock fairseq reads a multilingual model alone, and one with Marian's activation with ``--user-dir``."""
    model, tokenizer, commands = converted(kind, SEEDS[kind], tmp_path, capsys)
    assert ("--user-dir" in commands["stock fairseq"]) == (kind == "marian")
    code = folders.PAIRS[kind][1] if kind == "nllb" else None
    rows = generated(model, tokenizer, code and tokenizer.convert_tokens_to_ids(code))
    tokens = [tokenizer.convert_ids_to_tokens(row) for row in rows]
    expected = ["".join(row).replace("▁", " ").strip() for row in tokens]
    assert len(set(expected)) > 2
    assert texts(commands["stock fairseq"]) == expected
    assert "aggdec-interactive" in commands["faster"]
    if kind != "mbart":
        assert texts(commands["faster"]) == expected
    if kind == "nllb":
        whole(commands, tmp_path)


def whole(commands: dict[str, str], folder: Path) -> None:
    """A text file has the lines of fairseq-interactive, with the tags that its model writes."""
    stock = re.findall(r"^D-\d+\t\S+\t(.*)$", output(commands["stock fairseq"]), re.MULTILINE)
    (folder / "text").write_text("\n".join(folders.LINES) + "\n", encoding="utf-8")
    files = f"--input-file {folder / 'text'} --output-file {folder / 'translated'}"
    output(commands["faster"].replace("aggdec-interactive", "aggdec-generate") + f" {files}")
    assert (folder / "translated").read_text(encoding="utf-8").splitlines() == stock


def test_the_printed_hub_of_bart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer, commands = converted("bart", 4, tmp_path, capsys)
    expected = [tokenizer.convert_ids_to_tokens(row) for row in generated(model, tokenizer, 0)]
    texts = [tokenizer.convert_tokens_to_string(row) for row in expected]
    assert output(commands["stock fairseq's hub"]) == "\n".join(texts) + "\n"


@pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
def test_the_printed_service_in_8_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, commands = converted("bart", 4, tmp_path, capsys, "--int8")
    command = shlex.split(commands["the service in 8 bits, from packed weights"])
    args = parsed("serve", command[2:])
    assert command[:2] == ["aggdec", "serve"] and args.data is None
    assert len(from_pretrained(args.model).translate(folders.LINES)) == len(folders.LINES)


def test_a_refusal_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, output, says in (
        (tmp_path / "none", tmp_path / "out", f"there is no {tmp_path / 'none'}"),
        (tmp_path, tmp_path / "out", "it has no config.json"),
        (tmp_path, tmp_path, f"{tmp_path} exists: name a new folder"),
    ):
        assert main.run_tool("convert", [str(folder), str(output)]) == refusals.REFUSED
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("aggdec convert: error: ") and says in line
