"""``aggdec serve``: what it refuses before it loads a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_aggdec.api.text import Codec
from fairseq_aggdec.cli import serve
from fairseq_aggdec.cli.parsers import parser_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--api-key-file", "none.txt"], "--api-key-file none.txt cannot be read"),
        (["--api-key-file", "empty.txt"], "--api-key-file empty.txt has no keys"),
        (["--option", "spm"], "--option spm: give NAME=VALUE"),
        (["--option", "beam=3"], "--option beam=3: give --beam"),
        ([], "none.pt"),  # an error that the command line refuses with
    ],
    ids=str,
)
def test_refusals_of_the_command(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises((SystemExit, FileNotFoundError), match=message):
        serve.main(["." if arguments else "none.pt", ".", *arguments])


@pytest.mark.parametrize(
    ("words", "option"),
    [(["▁a", "▁b", "c"], "spm=spm.model"), (["a@@", "b"], "bpe=codes"), (["a", "b"], "")],
)
def test_a_model_of_pieces_is_not_served_without_a_word(
    words: list[str], option: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = SimpleNamespace(target_dictionary=SimpleNamespace(symbols=words))
    translator = SimpleNamespace(task=task, codec=Codec(), post_process=None)
    serve.warn_of_pieces(translator)
    translator.codec = Codec(subwords=object())
    serve.warn_of_pieces(translator)
    assert [option in line for line in caplog.messages] == [True] * bool(option)


def test_arguments_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "my.args").write_text(
        "model.pt data-bin\n\n--beam 4  # fewer\n--option 'spm=my model'\n"
    )
    args = parser_of("serve").parse_args([f"@{tmp_path}/my.args", "--port", "0"])
    assert (args.model, args.data, args.beam, args.port) == ("model.pt", "data-bin", 4, 0)
    assert args.option == ["spm=my model"]


def test_options_of_the_command() -> None:
    given = ["max_len_b=200", "spm=a=b.model", "int8=True"]
    assert serve.options(given) == {"max_len_b": 200, "spm": "a=b.model", "int8": True}


@pytest.mark.parametrize(
    ("option", "values", "message"),
    [
        ("--port", ["99999", "-1", "x"], "it must be a whole number from 0 to 65535"),
        ("--timeout", ["nan", "inf", "0", "-1", "x"], "it must be a number above 0"),
        ("--max-wait-ms", ["nan", "inf", "-1", "x"], "it must be a number of at least 0"),
    ],
)
def test_numbers_of_the_command(
    option: str, values: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in values:
        with pytest.raises(SystemExit):
            serve.main(["none.pt", ".", f"{option}={value}"])
        assert message in capsys.readouterr().err
