"""The console scripts: fairseq's commands with plugin and task set, refusals of one line, answers as they come."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq_cli import generate

import fairseq_aggdec
from fairseq_aggdec.cli import doctor, fairseq_commands, main, refusals
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import FastEncoder
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.switches import INSTRUCTIONS
from fairseq_aggdec.methods.options.kinds import KINDS
from fairseq_aggdec.stored.loading import load_checkpoint
from tests import warm
from tests.cli.commands import CUT, MODEL, TRAINING, Result, Trained, run
from tests.support import make_model, make_task

SCRIPTS = Path(sys.executable).parent
SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints" / "ua_gec"
OPTIONS = [*shlex.split("--cpu --num-workers 0 --beam 1"), *CUT]
LANGUAGES = ["--source-lang", "src", "--target-lang", "tgt"]


def command(
    name: str, *arguments: str | Path, folder: Path, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs an installed console script in a folder that is not the checkout."""
    return subprocess.run(
        [SCRIPTS / name, *map(str, arguments)],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def test_generate_anywhere(trained: Trained, stock: Result, tmp_path: Path) -> None:
    more = ["--path", trained.checkpoint, "--batch-size", "7", "--decoding", "iad"]
    found = command("aggdec-generate", trained.data, *OPTIONS, *more, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert Result(found.stdout, []).texts() == stock.texts()
    assert "decoding summary: 53 sentences" in found.stderr


def inside(command: Callable[[], int], *arguments: str | Path, stdin: str = "") -> Result:
    """Runs a console script in this process; it must succeed."""
    statuses: list[int] = []
    found = run(lambda: statuses.append(command()), *arguments, stdin=stdin)
    assert statuses == [0]
    return found


def test_train_and_validate(trained: Trained, tmp_path: Path) -> None:
    training = [*MODEL, *TRAINING, "--max-update", "2", "--save-dir", tmp_path]
    inside(fairseq_commands.train, trained.data, *training)
    saved = load_checkpoint(str(tmp_path / "checkpoint_last.pt"))["cfg"]
    assert saved["task"]["_name"] == "translation_aggdec"
    assert saved["common"]["user_dir"] == fairseq_aggdec.__path__[0]
    more = ["--path", trained.checkpoint, "--valid-subset", "valid", "--cpu", "--num-workers", "0"]
    found = inside(fairseq_commands.validate, trained.data, *more, "--batch-size", "9")
    assert "valid on 'valid' subset | loss" in "\n".join([found.stdout, *found.log])


def test_a_user_dir_and_a_task_of_ones_own(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text("print('my plugin')\n")
    more = [*OPTIONS, "--path", trained.checkpoint, "--user-dir", folder, "--task", "translation"]
    found = inside(fairseq_commands.generate, trained.data, *more, "--batch-size", "9")
    assert "my plugin" in found.stdout
    assert len(found.texts()) == len(trained.source())  # stock loses the last ones
    images = Path(__file__).parents[2] / "scripts" / "recipes" / "images" / "aggdec_images"
    options = [*OPTIONS, "--path", trained.checkpoint, "--task", "super_resolution"]
    options += ["--user-dir", images]
    with mock.patch.object(sys, "argv", ["any", str(tmp_path), *map(str, options)]):
        assert fairseq_commands.generate() == refusals.REFUSED
    assert "format.json" in capsys.readouterr().err  # images are wanted there, not dictionaries


def test_answers_come_one_by_one_through_a_pipe(trained: Trained) -> None:
    arguments = [*OPTIONS, *LANGUAGES, "--path", trained.checkpoint, "--decoding", "iad"]
    with subprocess.Popen(
        [Path(warm.python()).parent / "aggdec-interactive", trained.data, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        patience = threading.Timer(120, process.kill)  # an answer that never comes is an empty line
        patience.start()
        for sentence in trained.source()[:3]:  # the next is sent when the answer is there
            print(sentence, file=process.stdin, flush=True)
            while not (line := process.stdout.readline()).startswith("P-"):
                assert line
        process.stdin.close()
        assert process.wait(100) == 0
        patience.cancel()


REFUSALS = {
    "--decoding iadd": "invalid choice: 'iadd'",
    "--decoding greedy --min-len 30": "--min-len 30 is larger than the maximum length",
    "--nope": "unrecognized arguments: --nope",
    "--beem 4": "did you mean --beam?",
    "--max-len-b many": "invalid int value: 'many'",
    "--path none.pt": "Model file not found: none.pt",
    "--source-lang xx": "dict.xx.txt, but dict.src.txt, dict.tgt.txt: name the languages",
    "--batch-size 4": "--batch-size cannot be larger than --buffer-size",
    "--user-dir /nowhere": "there is no /nowhere",
    "--task nothing": "invalid choice: 'nothing'",
}


@pytest.mark.parametrize("options", REFUSALS)
def test_refusals_are_one_line(
    options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--path", str(SHIPPED / "checkpoint.pt"), "--cpu", "--beam", "1", *CUT, *LANGUAGES]
    monkeypatch.setattr("sys.argv", ["any", str(SHIPPED), *arguments, *options.split()])
    monkeypatch.setattr("sys.stdin", io.StringIO("так\n"))
    assert fairseq_commands.interactive() == refusals.REFUSED
    found = capsys.readouterr()
    *_, line = found.err.splitlines()
    assert line.startswith("aggdec-interactive: error: ")
    assert REFUSALS[options] in line
    assert "Traceback" not in found.err
    assert found.out == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"abc \xff\n", "the input is not text in UTF-8: byte 0xFF"),
        ("слово ".encode() * 3000, "--truncate-source cuts sources"),
    ],
)
def test_lines_that_cannot_be_read(
    text: bytes, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As standard input is where no locale is set."""
    lines = io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", lines)
    arguments = ["--path", str(SHIPPED / "checkpoint.pt"), "--cpu", *CUT, *LANGUAGES]
    monkeypatch.setattr("sys.argv", ["any", str(SHIPPED), *arguments])
    assert fairseq_commands.interactive() == refusals.REFUSED
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("aggdec-interactive: error: ") and says in line


def test_lines_are_read_as_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with PYTHONIOENCODING=utf-8:replace."""
    lines = io.TextIOWrapper(io.BytesIO(b"abc \xff\n"), encoding="utf-8", errors="replace")
    monkeypatch.setattr("sys.stdin", lines)
    arguments = ["--path", str(SHIPPED / "checkpoint.pt"), "--cpu", *CUT, *LANGUAGES]
    monkeypatch.setattr("sys.argv", ["any", str(SHIPPED), *arguments])
    assert not fairseq_commands.interactive()
    assert "\nH-0\t" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--arch is missing"),
        (["--arch", "transfomer"], "invalid choice: 'transfomer'"),
        (["--arch", "transformer", "--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_training_refuses_in_one_line(
    options: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["aggdec-train", "data", *options])
    assert fairseq_commands.train() == refusals.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("aggdec-train: error: ") and says in line


@pytest.mark.parametrize("tool", main.TOOLS)
def test_tools_refuse_in_one_line(
    tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the usage, which has 200 lines where fairseq's options are in it."""
    monkeypatch.setattr(sys, "argv", ["aggdec", tool, "data", "--path", "none.pt", "--nope"])
    assert main.main() == refusals.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"aggdec {tool}: error: ")
    monkeypatch.setattr(sys, "argv", ["aggdec", tool, "--debug", "--nope"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == refusals.REFUSED
    assert "usage: " in capsys.readouterr().err


def test_debug_shows_the_traceback() -> None:
    arguments = [*OPTIONS, *LANGUAGES, "--path", SHIPPED / "checkpoint.pt", "--decoding", "gad"]
    with pytest.raises(ValueError, match="--decoding gad needs a drafter"):
        run(fairseq_commands.interactive, SHIPPED, *arguments, "--debug")


def test_help_shows_the_options_of_the_plugin_too() -> None:
    with redirect_stdout(io.StringIO()) as own:
        run_shown(fairseq_commands.generate, "--help")
    assert "--drafter-path" in own.getvalue() and "--max-len-b" not in own.getvalue()
    with pytest.raises(SystemExit) as end, redirect_stdout(io.StringIO()) as whole:
        run_shown(fairseq_commands.generate, "--help-all")
    assert end.value.code == 0 and "--max-len-b" in whole.getvalue()


def run_shown(command: Callable[[], int], *arguments: str) -> None:
    with mock.patch.object(sys, "argv", ["any", *arguments]):
        command()


@pytest.mark.parametrize(
    "words, offered",
    [
        ("do", {"doctor"}),
        ("bench --ba", {"--baselines", "--batch-sizes"}),
        ("pack mod", {"model.pt"}),
    ],
)
def test_bash_completes(
    words: str, offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.pt").touch()
    run_shown(main.main, "--completion", "bash")
    (tmp_path / "functions").write_text(capsys.readouterr().out)
    asked = f"COMP_WORDS=(aggdec {words}); COMP_CWORD={len(words.split())}; _shtab_aggdec"
    line = ["bash", "-c", f'. ./functions; {asked}; echo "${{COMPREPLY[@]}}"']
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert set(done.stdout.split()) == offered, done.stderr


def test_completion_of_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(sys, "argv", ["aggdec", "--completion", "ed"]):
        assert main.main() == refusals.REFUSED
    assert "--completion takes one of bash" in capsys.readouterr().err


def test_aggdec_tells_its_folder_and_its_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = command("aggdec", "--user-dir", folder=tmp_path)
    assert found.stdout == f"{fairseq_aggdec.__path__[0]}\n"
    run_shown(main.main, "--version")
    assert capsys.readouterr().out == f"fairseq_aggdec {fairseq_aggdec.__version__}\n"
    run_shown(main.main, "--help")
    shown = capsys.readouterr().out
    for tool in ("audit", "bench", "trace", "distill", "lattice-tables", "doctor"):
        assert f"\n  {tool} " in shown
    for name, said in (
        ("doktor", "there is no such tool: did you mean aggdec doctor?"),
        ("lattice_tables", "there is no such tool: did you mean aggdec lattice-tables?"),
        ("generate", "this is a command of its own: aggdec-generate"),
        (
            "translate",
            "for a data set take aggdec-generate, for lines as they come aggdec-interactive",
        ),
        ("interactve", "there is no such tool: did you mean aggdec-interactive?"),
        ("xyz", "there is no such tool, choose from audit"),
    ):
        with mock.patch.object(sys, "argv", ["aggdec", name]):
            assert main.main() == refusals.REFUSED
        assert said in capsys.readouterr().err


def test_the_doctor_says_what_will_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)  # a tool sets it
    assert main.run_tool("doctor", ["--path", str(SHIPPED / "checkpoint.pt")]) == 0
    shown = capsys.readouterr().out
    library = kernels()
    form = "all layers in one call" if library else "packed weights layer by layer"
    instructions = INSTRUCTIONS[library.aggdec_instructions()] if library else ""
    for line in (
        *(f"{part}     fast form, {form}" for part in ("encoder", "decoder")),
        "int8        possible",
        "beam        ours",
        "advice      --decoding beam, the default; where --beam 1 is good enough, --decoding iad if outputs mostly",
        f"kernels     compiled for {instructions}" if library else "kernels     none",
    ):
        assert f"\n  {line}" in shown
    for word in ("threads", "VNNI", "AMX", "bf16", "packing", "GPU", "int8"):
        assert f"\n  {word} " in shown
    _, _, shown = shown.partition("who decodes\n")
    found = dict.fromkeys(KINDS, "")
    for line in shown.splitlines():
        method, what = line.split(maxsplit=1)
        found[method] += what
    ours = "decodes: " + ("compiled CPU kernels" if library else "PyTorch alone")
    for method in ("beam", "greedy", "iad"):
        assert ours in found[method] and "stock fairseq would give the same" in found[method]
    assert found["stock"] == "decodes: stock fairseq, as it is asked for"
    for method in ("gad", "nar", "blockwise", "interleaved", "lattice"):
        assert ("decodes: " in found[method]) == (method == "interleaved")  # as beam search
        assert found[method].startswith("refused: ") == (method != "interleaved")
    given = ["--path", str(SHIPPED / "checkpoint.pt"), "--decoding", "greedy"]
    assert main.run_tool("doctor", given) == 0
    assert "\n  beam        decodes" not in capsys.readouterr().out
    assert main.run_tool("doctor", ["--decoding", "beam"]) == refusals.REFUSED
    assert "--path is missing" in capsys.readouterr().err
    assert main.run_tool("doctor", ["--path", "none.pt"]) == refusals.REFUSED
    assert capsys.readouterr().err == "aggdec doctor: error: Checkpoint none.pt does not exist.\n"
    assert main.run_tool("doctor", ["data"]) == refusals.REFUSED
    assert "--path is missing" in capsys.readouterr().err


def test_the_doctor_takes_a_model_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint, or a folder of packed weights, both with the dictionaries beside them."""
    monkeypatch.setattr(sys, "argv", sys.argv)  # a tool sets it
    model = SHIPPED / "checkpoint.pt"
    pack(model, SHIPPED, tmp_path / "packed", "fp32")
    for named in (model, tmp_path / "packed"):
        assert main.run_tool("doctor", [str(named), "--decoding", "beam"]) == 0
        shown = capsys.readouterr().out
        assert "\n  advice      --decoding beam" in shown and "\n  beam        decodes" in shown
    assert "products come from the folder" in shown


def test_the_doctor_knows_every_kind_of_model() -> None:
    task = make_task()
    stock = make_model(task, 3)
    assert [doctor.of_models([stock]), doctor.int8_of(stock, (None, None))] == [
        None,
        "possible",
    ]
    other = make_model(task, 3)
    for part in (other.encoder, other.decoder):
        part.layers[0].activation_fn = F.gelu  # none of fairseq's
    assert "layer by layer" in doctor.form(CachedDecoder(other.decoder))
    assert "layer by layer" in doctor.form(FastEncoder(other.encoder))
    tanh = make_model(task, 3, activation_fn="tanh")
    forms = [doctor.form(CachedDecoder(model.decoder)) for model in (tanh, stock)]
    assert forms[0] == forms[1]
    for arch, advised in (
        ("blockwise_transformer", "blockwise"),
        ("interleaved_transformer", "interleaved"),
        ("lattice_transformer", "lattice"),
    ):
        model = make_model(task, 3, arch)
        assert doctor.form(CachedDecoder(model.decoder)).startswith("fast form")
        assert doctor.advice(model, task, None) == f"--decoding {advised}"
        assert not any(refused.startswith(advised) for refused in doctor.refusals_of(model))
        slots = advised != "blockwise"
        refused = doctor.int8_of(model, (None, None)).startswith("refused")
        assert refused == (advised == "lattice")
        assert (doctor.of_models([model]) is not None) == slots


def test_the_doctor_advises_no_copies_for_translation() -> None:
    """iad is greedy search, and copies only: a joint vocabulary alone is no reason for it."""
    task = make_task()
    model = make_model(task, 3)
    shared = doctor.advice(model, task, None)
    task.tgt_dict = Dictionary()
    for number in range(50):
        task.tgt_dict.add_symbol(f"other{number}")
    apart = doctor.advice(model, task, None)
    for advised in (shared, apart):
        assert advised.startswith("--decoding beam, the default; where --beam 1 is good enough, ")
    assert "iad if outputs mostly copy inputs (error correction, not translation)" in shared
    assert "iad" not in apart and "--decoding greedy, or gad" in apart


def test_fairseq_itself_takes_the_folder(trained: Trained, stock: Result) -> None:
    more = ["--user-dir", fairseq_aggdec.__path__[0], "--task", "translation_aggdec"]
    more += ["--path", str(trained.checkpoint), "--decoding", "greedy"]
    found = run(generate.cli_main, trained.data, *OPTIONS, *more)
    assert found.texts() == stock.texts()
