"""aggdec-generate --input-file: fairseq-interactive's output of a text, whoever works and whatever is killed."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import zstandard
from fairseq_cli import interactive

from fairseq_aggdec.bulk import translation
from fairseq_aggdec.bulk.claims import Claims
from fairseq_aggdec.cli import fairseq_commands, refusals
from fairseq_aggdec.cli.translate_file import OPTIONS as FILES
from tests.cli.commands import PLUGIN, Result, run
from tests.cli.faults.bench import CUT, LANGUAGES, MODELS, write_model
from tests.support import make_dictionary

SIDES = ["--source-lang", LANGUAGES[0], "--target-lang", LANGUAGES[1]]
OPTIONS = ["--cpu", "--beam", "2", *CUT, *SIDES]
SHARDS = ["--shard-size", "8", "--batch-size", "3"]
LINES = 200
LONGEST = 30  # tokens

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["fairseq_aggdec.cli.translate_file", "fairseq_cli.generate"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dictionaries, two models, and a text with what people write: nothing, blanks, words that no one knows."""
    folder = tmp_path_factory.mktemp("translate")
    dictionary, generator = make_dictionary(), random.Random(5)
    for language in LANGUAGES:
        dictionary.save(str(folder / f"dict.{language}.txt"))
    for seed in (1, 2):
        write_model(folder / f"model{seed}.pt", folder, MODELS["model"], seed)
    words = [dictionary[number] for number in range(4, 30)]
    lines = [" ".join(generator.choices(words, k=generator.randint(1, 9))) for _ in range(LINES)]
    lines[3], lines[70], lines[90] = "", "  \t ", f"слово {words[0]}\u2028{words[1]} \x0b"
    (folder / "text").write_bytes("\n".join(lines).encode())  # no end of the last line
    return folder


def arguments(folder: Path, target: Path, *more: str | Path, source: str = "text") -> list[str]:
    given = [str(folder), "--path", str(folder / "model1.pt"), *OPTIONS, *SHARDS]
    place = source if source == "-" else str(folder / source)
    return [*given, "--input-file", place, "--output-file", str(target), *map(str, more)]


def translate(folder: Path, target: Path, *more: str | Path, source: str = "text") -> Result:
    statuses: list[int] = []
    found = run(
        lambda: statuses.append(fairseq_commands.generate()),
        *arguments(folder, target, *more, source=source),
    )
    assert statuses == [0]
    return found


def stock(folder: Path, *more: str) -> Result:
    given = [folder, *PLUGIN, "--path", folder / "model1.pt", *OPTIONS, "--decoding", "stock"]
    given += ["--batch-size", "3", "--buffer-size", "8", "--input", folder / "text", *more]
    return run(interactive.cli_main, *given)


@pytest.fixture(scope="module")
def expected(folder: Path) -> bytes:
    texts = stock(folder).texts()
    assert len(texts) == LINES
    assert len(set(texts.values())) > 20
    return "".join(texts[str(number)] + "\n" for number in range(LINES)).encode()


def work(given: list[str]) -> None:
    sys.argv = ["aggdec-generate", *given]
    sys.exit(fairseq_commands.generate())


def start(given: list[str]) -> BaseProcess:
    process = context.Process(target=work, args=(given,))
    process.start()
    return process


def shards(target: Path) -> list[str]:
    return [path.name for path in Path(f"{target}.parts").glob("*.shard")]


# -- what is written


@pytest.mark.parametrize("decoding", ["beam", "stock"])
def test_a_file(decoding: str, folder: Path, expected: bytes, tmp_path: Path) -> None:
    translate(folder, tmp_path / "out", "--decoding", decoding)
    assert (tmp_path / "out").read_bytes() == expected
    left = {path.name for path in tmp_path.rglob("*")}
    assert left == {"out", "out.parts", "text.job.json", "merged.json"}


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed(kind: str, folder: Path, expected: bytes, tmp_path: Path) -> None:
    text, module = (folder / "text").read_bytes(), {"gz": gzip, "zst": zstandard}[kind]
    frames = [module.compress(text[:500]), module.compress(text[500:])]  # as `cat a.gz b.gz` does
    (folder / f"text.{kind}").write_bytes(b"".join(frames))
    for name in (f"out.{kind}", f"again.{kind}"):
        translate(folder, tmp_path / name, source=f"text.{kind}")
    written = (tmp_path / f"out.{kind}").read_bytes()
    assert written == (tmp_path / f"again.{kind}").read_bytes()
    read = gzip.decompress if kind == "gz" else zstandard.ZstdDecompressor().stream_reader
    assert (read(written) if kind == "gz" else read(io.BytesIO(written)).read()) == expected


def test_standard_input(folder: Path, expected: bytes, tmp_path: Path) -> None:
    """Killed, it is given again; another one is refused."""
    text, target = (folder / "text").read_bytes(), tmp_path / "out"

    def piped(content: bytes, command: Callable[[], Any]) -> None:
        pipe = SimpleNamespace(buffer=io.BytesIO(content))
        with mock.patch.object(sys, "stdin", pipe):
            command()

    with mock.patch.object(translation, "merge", side_effect=KeyboardInterrupt):
        piped(text, lambda: main(folder, target, source="-"))
    assert not target.exists()
    piped(text + b"w9\n", lambda: main(folder, target, source="-"))
    assert not target.exists()
    with mock.patch("fairseq_aggdec.api.translator.Translator.decode_tokens", None):
        piped(text, lambda: main(folder, target, source="-"))
    assert target.read_bytes() == expected
    assert not (tmp_path / "out.parts" / "input").exists()


def main(folder: Path, target: Path, *more: str | Path, source: str = "text") -> int:
    given = arguments(folder, target, *more, source=source)
    with mock.patch.object(sys, "argv", ["aggdec-generate", *given]):
        return fairseq_commands.generate()


def test_hypotheses_as_json_lines(folder: Path, tmp_path: Path) -> None:
    translate(folder, tmp_path / "out.jsonl", "--nbest", "2")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().split("\n")[:-1]]
    sources = (folder / "text").read_bytes().decode().split("\n")
    assert [line["source"] for line in lines] == sources
    assert [line["line"] for line in lines] == list(range(1, LINES + 1))
    found = [(n, one["text"]) for n, line in enumerate(lines) for one in line["hypotheses"]]
    printed = stock(folder, "--nbest", "2").stdout.splitlines()
    rows = [line.removeprefix("D-").split("\t", 2) for line in printed if line.startswith("D-")]
    assert found == [(int(number), text) for number, _, text in rows]
    scores = [one["score"] for line in lines for one in line["hypotheses"]]
    base2 = [float(score) for _, score, _ in rows]
    assert scores == pytest.approx([score * 0.6931471805599453 for score in base2], abs=1e-4)


def test_token_batches_and_an_empty_text(folder: Path, expected: bytes, tmp_path: Path) -> None:
    options = ["--max-tokens", "64", "--batch-size", "9"]
    translate(folder, tmp_path / "out", *options)
    assert (tmp_path / "out").read_bytes() == expected
    (folder / "empty").write_bytes(b"")
    translate(folder, tmp_path / "none", source="empty")
    assert (tmp_path / "none").read_bytes() == b""


def test_lines_that_are_too_long(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "long").write_text("w1\n" + "w2 " * 50 + "\nw3\n")
    assert main(folder, tmp_path / "out", source="long") == refusals.REFUSED
    assert "line 2 of the input has 51 tokens" in capsys.readouterr().err
    translate(folder, tmp_path / "out", "--skip-invalid-size-inputs-valid-test", source="long")
    first, second, third, end = (tmp_path / "out").read_text().split("\n")
    assert first and third and not second and not end


# -- workers and kills


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_kills_and_workers_change_nothing(
    workers: int, folder: Path, expected: bytes, tmp_path: Path
) -> None:
    target, generator = tmp_path / "out", random.Random(workers)
    given = arguments(folder, target)
    for _ in range(4 - workers):  # rounds of kills
        wanted = len(shards(target)) + generator.randint(1, 4)
        processes = [start(given) for _ in range(workers)]
        while processes[0].exitcode is None and len(shards(target)) < wanted:
            processes[0].join(0.001)
        for process in processes:
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL
        assert not target.exists()
    processes = [start(given) for _ in range(workers)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert target.read_bytes() == expected
    assert {path.name for path in Path(f"{target}.parts").iterdir()} == {
        "text.job.json",
        "merged.json",
    }


def launched(folder: Path, target: Path, number: str) -> BaseProcess:
    return start(arguments(folder, target, "--launcher", "local", "--workers", number))


def test_submitit_on_this_machine(folder: Path, expected: bytes, tmp_path: Path) -> None:
    target = tmp_path / "out"
    process = launched(folder, target, "2")
    process.join()
    assert process.exitcode == 0
    assert target.read_bytes() == expected
    logs = [path.read_text() for path in (tmp_path / "out.parts" / "launcher").glob("*.err")]
    assert len(logs) == 2


def test_a_preempted_job_goes_on(folder: Path, expected: bytes, tmp_path: Path) -> None:
    """The signal that submitit has Slurm send before it takes a machine away."""
    target = tmp_path / "out"
    process = launched(folder, target, "1")
    worker = None
    while process.exitcode is None and worker is None:
        process.join(0.001)
        for claim in Path(f"{target}.parts").glob("*.claim"):
            with suppress(FileNotFoundError, ValueError):  # given back, or being written
                worker = json.loads(claim.read_text())["pid"]
    assert worker is not None
    os.kill(worker, signal.SIGUSR2)
    process.join()
    assert process.exitcode == 0
    assert target.read_bytes() == expected
    (log,) = (tmp_path / "out.parts" / "launcher").glob("*.err")
    assert "Requeued job" in log.read_text()


def test_learned_drafts_change_nothing(folder: Path, tmp_path: Path) -> None:
    """Outputs that depend on how long the drafts are, by one process and by shards of several, one by one."""
    more = ["--decoding", "iad", "--beam", "1", "--acceptance", "top-beta", "--top-beta", "20"]
    more += ["--tolerance", "9"]
    translate(folder, tmp_path / "whole", *more)
    target = tmp_path / "again"
    with mock.patch.object(translation, "merge", side_effect=KeyboardInterrupt):
        assert main(folder, target, *more) == 130
    for name in shards(target)[::2]:
        (tmp_path / "again.parts" / name).unlink()
    translate(folder, target, *more)
    assert target.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("moment", ["written", "named"])
def test_a_killed_merge_is_repeated(
    moment: str, folder: Path, expected: bytes, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    name = "write_durably" if moment == "written" else "sync_folder"
    with mock.patch.object(translation, name, side_effect=KeyboardInterrupt):
        assert main(folder, target) == 130
    assert target.exists() == (moment == "named")
    translate(folder, target)
    assert target.read_bytes() == expected
    assert not shards(target)


def test_who_comes_late_changes_nothing(folder: Path, expected: bytes, tmp_path: Path) -> None:
    target = tmp_path / "out"
    translate(folder, target)
    before = target.stat().st_ino, target.stat().st_mtime_ns
    with mock.patch("fairseq_aggdec.api.translator.Translator.decode_tokens", None):
        log = translate(folder, target).log
    assert f"{target} is complete: {LINES} lines" in log
    assert (target.stat().st_ino, target.stat().st_mtime_ns) == before
    target.unlink()  # to have it once more
    translate(folder, target)
    assert target.read_bytes() == expected


def test_one_worker_writes_the_output(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with mock.patch.object(translation, "merge", side_effect=KeyboardInterrupt):
        assert main(folder, target) == 130
    with Claims(tmp_path / "out.parts").take("merge"):
        assert any("another worker writes" in line for line in translate(folder, target).log)
    assert not target.exists()


# -- refusals


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda tmp: (tmp / name).write_bytes(content)


def begun(folder: Path, tmp: Path) -> None:
    with mock.patch.object(translation, "merge", side_effect=KeyboardInterrupt):
        assert main(folder, tmp / "out") == 130


def spoil(folder: Path, tmp: Path) -> None:
    begun(folder, tmp)
    path = sorted((tmp / "out.parts").glob("*.shard"))[5]
    path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("more", "says", "make"),
    [
        ([], "out exists and is not ours", put("out", b"precious")),
        ([], "out.parts is in the way", put("out.parts", b"precious")),
        (["--output-file", "{tmp}/none/out"], "there is no folder", None),
        (["--output-file", "{tmp}"], "is a folder", None),
        (["--input-file", "{tmp}/none"], "there is no file", None),
        (["--input-file", "{tmp}/bad"], "line 2 is not UTF-8", put("bad", b"w1\n\xff\n")),
        (["--input-file", "{tmp}/a.gz"], "a.gz is damaged", put("a.gz", gzip.compress(b"w")[:-5])),
        (["--input-file", "{tmp}/a.gz"], "a.gz is damaged", put("a.gz", b"no archive")),
        (["--input-file", "{tmp}/a.zst"], "a.zst is damaged", put("a.zst", b"no archive")),
        (["--input-file", "{tmp}/x"], "line 1 has more than", put("x", b"w" * (1 << 20))),
        (["--nbest", "2"], "name the output *.jsonl", None),
        (["--nbest", "3"], "--nbest 3: it must be 1 to --beam, 2", None),
        (["--prefix-size", "1"], "--prefix-size does not go with --input-file", None),
        (["--shard-size", "0"], "--shard-size", None),
        (
            [*("--decoding", "gad", "--draft-nodes", "auto"), *("--acceptance", "top-beta")],
            "--acceptance does not go with --draft-nodes auto",
            None,
        ),
        (["--nope"], "unrecognized arguments: --nope", None),
        (["--launcher", "local", "--input-file", "-"], "do not share standard input", None),
        (["--beam", "1"], "--beam 2, not 1", begun),
        (["--path", "{folder}/model2.pt"], "another model (--path)", begun),
        (["--input-file", "{folder}/model2.pt"], "is not UTF-8", begun),
        (["--input-file", "{folder}/dict.source.txt"], "--input-file", begun),
        (["--shard-size", "9"], "--shard-size 8, not 9", begun),
        ([], "is not what was written there", spoil),
    ],
)
def test_refusals(
    more: list[str],
    says: str,
    make: Any,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence, before any work, and all that is there stays as it is."""
    if make is not None:
        make(*([folder] if make in (begun, spoil) else []), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    given = [word.format(tmp=tmp_path, folder=folder) for word in more]
    with mock.patch("fairseq_aggdec.api.translator.Translator.decode_tokens", None):
        assert main(folder, tmp_path / "out", *given) == refusals.REFUSED
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("aggdec-generate: error: ") and says in line
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    after.pop(tmp_path / "out.parts" / "output.partial", None)  # of a merge that met a bad shard
    assert after == before


def test_the_options_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(sys, "argv", ["any", "--help"]), pytest.raises(SystemExit):
        fairseq_commands.generate()
    shown = capsys.readouterr().out
    for option in (*FILES, "--launcher", "--lease", "--shard-size"):
        assert f"  {option} " in shown
