"""Which errors are refusals (one line, exit status 2) and which are faults (their traceback is wanted)."""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import logging
import re
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceConfig
from fairseq.models.transformer import TransformerModel
from omegaconf import OmegaConf

from fairseq_aggdec.cli import main, refusals, serve
from fairseq_aggdec.methods.refusing import refuse_unsupported
from fairseq_aggdec.startup import after_fairseq, installing
from fairseq_aggdec.stored.loading import CheckpointError, load_checkpoint


def ended(action: Any, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = refusals.run("tool", lambda given: action(), arguments)
    return status, capsys.readouterr().err


def raiser(error: BaseException) -> Any:
    def action() -> None:
        raise error

    return action


def another_dictionary() -> None:
    """As where the source dictionary of DATA is not the model's."""
    dictionaries = Dictionary(), Dictionary(extra_special_symbols=["a"])
    task = Namespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[1])
    TransformerModel.build_model(Namespace(share_all_embeddings=True), task)


def damaged_pieces() -> None:
    sentencepiece.SentencePieceProcessor().Load(__file__)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (lambda: refuse_unsupported(type("", (), {"nbest": 3}), {}, "iad"), "--nbest does not go"),
        (lambda: load_checkpoint("none.pt"), "Checkpoint none.pt does not exist."),
        (lambda: Dictionary.load("none.txt"), "No such file or directory: 'none.txt'"),
        (lambda: Dictionary.load("none/dict.de.txt"), "name the folder that fairseq-preprocess"),
        (raiser(OSError("Model file not found: a.pt")), "a.pt (--path and --lm-path name files"),
        (raiser(FileNotFoundError("/nowhere")), "there is no /nowhere"),
        (lambda: post_process("a", "spm"), "option: spm (--post-process takes sentencepiece"),
        (damaged_pieces, "(--sentencepiece-model names what sentencepiece trained"),
        (raiser(SystemExit("error: Dataset not found: x")), "x (--gen-subset names a set"),
        (
            lambda: OmegaConf.structured(SentencepieceConfig()).sentencepiece_model,
            "--sentencepiece-model is missing",
        ),
        (another_dictionary, "joined dictionary (both dictionaries of the data folder"),
        (raiser(CheckpointError("x.pt is\n damaged")), "x.pt is damaged"),
        (raiser(SystemExit("error: give one")), "give one"),
        (raiser(SystemExit("error: x: [Errno 28] No space")), "error: x: No space"),
        (lambda: ast.literal_eval("dropout=1"), "--model-overrides: give a Python dictionary"),
        (lambda: ast.literal_eval("dropout"), "--model-overrides: give a Python dictionary"),
        (lambda: b"a\xff".decode(), "is not text in UTF-8: byte 0xFF, invalid start byte"),
        (lambda: "\udcff".encode(), "the input is not text in UTF-8"),
        (lambda: "ї".encode("latin-1"), "cannot be written in latin-1: set PYTHONIOENCODING"),
        (raiser(ModuleNotFoundError("No", name="jinja2.ext")), "pip install 'jinja2"),
    ],
    ids=range(20),
)
def test_refusals(action: Any, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, written = ended(action, capsys)
    assert status == refusals.REFUSED
    assert written.startswith("tool: error: ") and sentence in written
    assert written.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [ValueError("in torch, say"), RuntimeError("shapes"), KeyError("x"), AssertionError("")],
    ids=repr,
)
def test_faults_keep_their_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        refusals.run("tool", lambda given: raiser(error)(), [])


def test_debug_lets_everything_through_and_is_not_handed_on() -> None:
    seen: list[list[str]] = []

    def action(given: list[str]) -> None:
        seen.append(given)
        load_checkpoint("none.pt")

    with pytest.raises(FileNotFoundError):
        refusals.run("tool", action, ["a", "--debug", "b"])
    assert seen == [["a", "b"]]


def test_the_nearest_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--decoding")
    assert (
        "(did you mean --decoding?)"
        in ended(lambda: parser.parse_args(["--decodng", "x"]), capsys)[1]
    )
    assert "(--help shows the options)" in ended(lambda: parser.parse_args(["--nope"]), capsys)[1]


def test_a_missing_dictionary_names_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dict.src.txt").touch()
    _, written = ended(lambda: Dictionary.load(str(tmp_path / "dict.de.txt")), capsys)
    assert "dict.de.txt, but dict.src.txt: name the languages of the data with -s and -t" in written


def test_hydra_is_not_heard(recwarn: pytest.WarningsRecorder) -> None:
    """Its warning is said of the line that called fairseq, wherever that line is."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        after_fairseq.quieten_hydra()
        warnings.warn("\n'config' is validated against ConfigStore schema", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(each.message) for each in recwarn] == ["something else"]


def test_a_status_is_handed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(lambda: 1, capsys) == (1, "")
    assert ended(lambda: None, capsys) == (0, "")
    with pytest.raises(SystemExit) as end:
        ended(raiser(SystemExit(3)), capsys)
    assert end.value.code == 3


def test_who_stops_reading_or_waiting_is_not_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert ended(raiser(KeyboardInterrupt()), capsys) == (130, "")
    assert refusals.run("tool", lambda given: raiser(BrokenPipeError())(), []) == 0


ROOT = Path(__file__).resolve().parents[2]


def test_advice_names_packages_of_our_own_requirements() -> None:
    """With the same versions as ``setup.py``."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    installed = "\n".join(importlib.metadata.requires("fairseq_aggdec") or [])
    for module, distribution in installing.DISTRIBUTIONS.items():
        if not re.search(rf"^{distribution}\b", installed, re.MULTILINE):
            continue  # the environment was made before setup.py named it
        (wanted,) = set(re.findall(rf'"({distribution}(?:\[\w+\])?[<>=][^";]*)["; ]', setup))
        assert installing.advice(module) == f"pip install '{wanted}'"


def test_advice_without_metadata_is_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "PACKAGE", "no-such-distribution")
    assert installing.advice("PIL", "ua_gec") == "pip install 'pillow' 'ua-gec'"


@pytest.mark.parametrize(
    ("main", "arguments", "missing", "says"),
    [
        (
            serve.main,
            ["owner/model"],
            "uvicorn",
            "aggdec serve needs uvicorn, of the extra `serve`",
        ),
    ],
    ids=["serve"],
)
def test_a_package_that_is_missing_is_named_before_the_work(
    main: Callable[[list[str]], object],
    arguments: list[str],
    missing: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installing, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(SystemExit, match=f"{says}.*: pip install '{missing}"):
        main(arguments)


def test_what_a_terminal_would_obey_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\u202egnp.pt\x1b[31m\u2028b"
    _, said = ended(raiser(CheckpointError(f"{name} is no checkpoint")), capsys)
    shown = "a\\u202egnp.pt\\x1b[31m"
    assert said == f"tool: error: {shown} b is no checkpoint\n"
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "%s", (name,), None)
    assert after_fairseq.OneLine().format(record) == f"{shown}\\u2028b"


def test_nobody_is_told_to_install_the_project_from_an_index() -> None:
    """It is on none: whoever takes its name there would be installed."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    code = [path for folder in ("fairseq_aggdec", "scripts") for path in (ROOT / folder).rglob("*")]
    files = [path for path in (*pages, *code) if path.suffix in (".md", ".py", ".sh")]
    assert len(files) > 200
    named = re.compile(r"(?<!un)install (?:-\S+ )*['\"]?(?:fairseq[_-])?aggdec\b")
    told = [path.name for path in files if named.search(path.read_text(encoding="utf-8"))]
    assert told == []


@pytest.mark.parametrize("asked", ["--help", "--user-dir", "--version"])
def test_a_full_disk(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse = raiser(OSError(28, "No space left on device"))
    full = Namespace(write=lambda text: refuse(), flush=lambda: None)
    monkeypatch.setattr(sys, "argv", ["aggdec", asked])
    monkeypatch.setattr(sys, "stdout", full)
    assert main.main() == refusals.REFUSED
    assert capsys.readouterr().err == "aggdec: error: No space left on device\n"
