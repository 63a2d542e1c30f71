"""Distillation, tools, training and input of all sorts."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.cli.faults import bench as work
from tests.cli.faults.bench import LANGUAGES, PAIR, REFUSED, WARNED, WORKS, Bench, Case, broken
from tests.cli.faults.files import with_data
from tests.cli.faults.options import GENERATE, method

DISTILL, GENERATE_TEXT = "aggdec distill", "aggdec-generate"
TEACHER = "--path {model} --output {tmp}/out"


def distilled(bench: Bench, tmp: Path) -> None:
    """Shards of a finished distillation in ``out``, not made a data folder yet."""
    case = Case("", "", DISTILL, TEACHER + " --keep-cut", WORKS)
    with mock.patch.dict("os.environ"):
        ended = work.run(bench, case, tmp)
    assert ended.error is None, ended.message
    for path in (tmp / "out").iterdir():
        if path.name == "text":
            shutil.rmtree(path)
        elif path.name != "shards":
            path.unlink()


def spoiled(bench: Bench, tmp: Path) -> None:
    """A finished shard with another byte."""
    distilled(bench, tmp)
    (path,) = (tmp / "out" / "shards").glob("train.*.shard")
    path.write_bytes(path.read_bytes()[:-2] + b"x\n")


def renamed(old: str, new: str) -> Callable[..., None]:
    """A file of the shards under another one's name."""

    def make(bench: Bench, tmp: Path) -> None:
        distilled(bench, tmp)
        (tmp / "out" / "shards" / old).rename(tmp / "out" / "shards" / new)

    return make


def without_head(bench: Bench, tmp: Path) -> None:
    distilled(bench, tmp)
    (path,) = (tmp / "out" / "shards").glob("train.*.shard")
    path.write_bytes(path.read_bytes().partition(b"\n")[2])


def somebodys(name: str) -> Callable[[Bench, Path], None]:
    def make(bench: Bench, tmp: Path) -> None:
        (tmp / "out").mkdir()
        (tmp / "out" / name).write_text("precious")

    return make


def copied(bench: Bench, tmp: Path) -> None:
    shutil.copytree(bench.data, tmp / "out")


def linked(bench: Bench, tmp: Path) -> None:
    (tmp / "out").symlink_to(bench.data)


def distill_cases() -> list[Case]:
    merge = TEACHER + " --merge --keep-cut"
    table: list[tuple[str, str, str, Callable[..., Any] | None]] = [
        ("OUTPUT is DATA", "--path {model} --output {data}", "--output", None),
        ("OUTPUT is DATA, merging", "--path {model} --output {data} --merge", "--output", None),
        ("OUTPUT is another data folder", TEACHER, "--output", copied),
        ("OUTPUT is a link to DATA", TEACHER, "--output", linked),
        ("OUTPUT holds a note", TEACHER, "--output", somebodys("note.txt")),
        ("OUTPUT is a file", "--path {model} --output {model}", "--output", None),
        ("no first line", merge, "was changed", without_head),
        ("a byte that was changed", merge, "was changed", spoiled),
        (
            "another set's header",
            merge + " --subsets valid",
            "valid",
            renamed("train.job.json", "valid.job.json"),
        ),
        (
            "another shard's name",
            merge,
            "shard 0 of 1",
            renamed("train.0-of-1.shard", "train.1-of-2.shard"),
        ),
        ("a broken teacher", TEACHER.replace("{model}", "{tmp}/bad.pt"), "bad.pt", broken("model")),
        ("no teacher", "--output {tmp}/out", "--path", None),
        ("a set that is not there", TEACHER + " --subsets dev", "dev", None),
        ("n-best", TEACHER + " --nbest 2 --beam 2", "--nbest", None),
        ("a number of a process", TEACHER + " --distributed-rank 3", "--distributed-rank", None),
        ("other shards than before", TEACHER + " --shard-size 5", "--shard-size", distilled),
        ("nothing decoded yet", merge, "out/shards", None),
        (
            "other options than before",
            TEACHER + " --unkpen 1",
            "--unkpen",
            distilled,
        ),
    ]
    return [
        # Locks and the shard of a teacher that fails later are its own to write.
        Case("distillation", name, DISTILL, options, REFUSED, says, make, writes=True)
        for name, options, says, make in table
    ]


def text_cases() -> list[Case]:
    """aggdec-generate --input-file: what is not ours stays, what is no text is named."""
    given = "--path {model} --input-file {tmp}/in --output-file {tmp}/out"
    text = work.file_of("in", "w1 w2\nw3\n")

    def with_text(name: str, content: str = "precious") -> Callable[[Bench, Path], None]:
        def make(bench: Bench, tmp: Path) -> None:
            text(bench, tmp)
            (tmp / name).parent.mkdir(exist_ok=True)
            (tmp / name).write_text(content)

        return make

    def pipe(bench: Bench, tmp: Path) -> None:
        os.mkfifo(tmp / "in")

    def compressed(module: Any) -> Callable[[Bench, Path], None]:
        def make(bench: Bench, tmp: Path) -> None:
            (tmp / "in").write_bytes(module.compress(b"w1 w2\nw3\n"))

        return make

    def nan(bench: Bench, tmp: Path) -> None:
        text(bench, tmp)
        broken("model")(bench, tmp)

    table: list[tuple[str, str, str, Callable[..., Any]]] = [
        ("the output is there", given, "out exists", with_text("out")),
        ("the output is a folder", given, "out is a folder", with_text("out/file")),
        ("the output is the input", given + " --output-file {tmp}/in", "in exists", text),
        ("no folder for the output", given + " --output-file {tmp}/none/x", "no folder", text),
        ("somebody's files in the way", given, "out.parts", with_text("out.parts/file")),
        ("an archive of another kind", given + " --output-file {tmp}/x.zst", "x.zst", text),
        ("no input", given + " --input-file {tmp}/none", "none", text),
        ("no output", "--path {model} --input-file {tmp}/in", "--output-file", text),
        ("a model for an input", given + " --input-file {model}", "UTF-8", text),
        ("a pipe for an input", given, "in is a pipe", pipe),
        ("an input compressed by xz", given, "in is compressed by xz", compressed(lzma)),
        ("an input compressed by bzip2", given, "in is compressed by bzip2", compressed(bz2)),
        ("gzip under another name", given, "in is compressed by gzip", compressed(gzip)),
        ("a broken archive", given + " --input-file {tmp}/a.gz", "a.gz", with_text("a.gz")),
        ("n-best as text", given + " --beam 2 --nbest 2", "--nbest", text),
        ("shards of nothing", given + " --shard-size 0", "--shard-size", text),
        ("no model", given + " --path {tmp}/none.pt", "none.pt", text),
        ("a broken model", given + " --path {tmp}/bad.pt", "bad.pt gives", nan),
        ("a sentence that is too long", given, "line 3", with_text("in", "w\n\n" + "w " * 99)),
    ]
    late = ("a broken model", "a sentence that is too long")  # the header of the job is written
    return [
        Case("text files", name, GENERATE_TEXT, options, REFUSED, says, make, writes=name in late)
        for name, options, says, make in table
    ]


def tool_cases() -> list[Case]:
    def tool(name: str, options: str, says: str, make: Any = None) -> Case:
        shown = options.replace("{tmp}/", "").replace("{model}", "MODEL")
        title = f"{name} {shown}" + (f", {says}" if says.startswith("li") else "")
        return Case(
            "tools", title, name if "." in name else f"aggdec {name}", options, REFUSED, says, make
        )

    audit = "--path {model} --decoding greedy "
    bench = "--path {model} --output {tmp}/new/result --system a=--beam\0001 "
    trace = "--path {model} --decoding iad "
    empty = with_data(emptied)
    return [
        tool("audit", audit + "--limit 0", "--limit 0"),
        tool("audit", audit + "--limit -3", "--limit -3"),
        tool("audit", audit + "--batch-sizes 0", "--batch-sizes 0"),
        tool("audit", audit + "--output {model}/result", "--output"),
        tool("audit", audit + "--output /proc/none/result", "--output"),
        tool("audit", audit + "--reference {tmp}/none.pt", "--reference"),
        tool("audit", "--decoding greedy", "--path"),
        tool("audit", "--path {tmp}/none.pt --decoding greedy", "none.pt"),
        tool("audit", "DATA={tmp}/none " + audit, "none"),
        tool("audit", "DATA={tmp}/data " + audit, "the set test of", empty),
        tool("bench", bench + "--limit 0", "--limit 0"),
        tool("bench", bench + "--repeats 0", "--repeats 0"),
        tool("bench", bench + "--system a=--beam\0002", "--system"),
        tool("bench", bench + "--system b", "--system"),
        tool("bench", bench + "--baselines c", "--baselines c"),
        tool("bench", bench + "--hypotheses {model}/texts", "--hypotheses"),
        tool("bench", "--path {model} --output {model}/x --system a=", "--output"),
        tool("bench", "--output {tmp}/x --system a=", "--path"),
        tool("trace", trace + "--sentences 99", "--sentences 99"),
        tool("trace", trace + "--limit 0", "--limit 0"),
        tool("trace", trace + "--count 0", "--count 0"),
        tool("trace", trace + "--report {data}", "--report"),
        tool("trace", "--path {model} --decoding greedy", "--decoding greedy"),
        tool("trace", "--decoding iad", "--path"),
        tool("bench", "--path {model} --limit 0", "--limit 0"),
        tool("bench", "--path {model} --threads 0", "--threads 0"),
        tool("bench", "--path {model} --output {model}/x", "--output"),
        tool("bench", "--systems iad", "--path"),
        tool("lattice-tables", "--links {tmp}/links", "links", work.file_of("links", "a-b\n")),
        tool(
            "lattice-tables",
            "--links {tmp}/links --output {tmp}/new",
            "lines 1 to 1",
            work.file_of("links", "0-99999999999999999999\n"),
        ),
        tool(
            "lattice-tables",
            "--links {tmp}/links --output {tmp}/new",
            "the link 0-77",
            work.file_of("links", "0-77\n" * 12),
        ),
        tool("lattice-tables", "--links {tmp}/none --output {tmp}/new", "none"),
        tool("lattice-tables", "--max-offset 1000000000000", "--max-offset"),
        tool("lattice-tables", "--max-offset -1", "--max-offset"),
        tool("lattice-tables", "--top 0", "--top"),
        tool("lattice-tables", "--split none", "none"),
        tool("lattice-tables", "--output {model}/x", "--output"),
        tool(
            "lattice-tables",
            "DATA={tmp}/data --split test --links {tmp}/none --output {tmp}/new",
            "test",
            empty,
        ),
        tool(
            "scripts.recipes.lattice.recall_table", "--output {tmp}/x --tables {tmp}/none", "none"
        ),
        tool(
            "scripts.recipes.lattice.recall_table",
            "--output {model}/x --tables {tables}",
            "--output",
        ),
        tool("average-checkpoints", "DATA= --output {tmp}/new.pt {tmp}/none.pt", "none.pt"),
        tool("scripts.recipes.grow", "DATA= {tmp}/none.pt {tmp}/new.pt", "none.pt"),
    ]


def emptied(data: Path) -> None:
    """A binarised set without a sentence."""
    from fairseq.data import Dictionary

    from fairseq_aggdec.distill import distilled_folder

    for language in LANGUAGES:
        dictionary = Dictionary.load(str(data / f"dict.{language}.txt"))
        distilled_folder.write_side(data, f"test.{PAIR}", language, dictionary, [])


def training_cases() -> list[Case]:
    def train(options: str, says: str, make: Any = None) -> Case:
        options += " --save-dir {tmp}/new --no-save"
        name = options.split(" --save-dir")[0].replace("{tmp}/", "").replace("{model}", "MODEL")
        # The folder of checkpoints is made before the first batch.
        late = says == "--criterion glancing_loss"
        return Case("training", name, "fairseq-train", options, REFUSED, says, make, writes=late)

    transformer = "--arch transformer_tiny "
    drafter = "--arch nar_drafter --criterion glancing_loss "
    return [
        train(transformer + "--criterion glancing_loss", "--criterion glancing_loss"),
        train(drafter + "--glancing-start 2", "--glancing-start"),
        train(drafter + "--slot-decay 0", "--slot-decay"),
        train(drafter + "--eval-acceptance {tmp}/none.pt", "none.pt"),
        train(drafter + "--eval-acceptance {drafter}", "--eval-acceptance"),
        train("--arch lattice_transformer --decoder-layers 0", "--decoder-layers"),
        train("--arch lattice_transformer --base-checkpoint {tmp}/none.pt", "none.pt"),
    ]


def input_cases() -> list[Case]:
    """What a person, or a pipe, types: every line has its answer, the same as that of stock search."""
    lines = {
        "an empty line": "\nw1 w2\n",
        "blanks only": "   \t \n",
        "unknown words only": "never heard of\n",
        "control characters": "w1 \x00 \x07 w2 \x1b[31m\n",
        "other scripts": "слово 言葉 🙂 w3\n",
        "a separator of lines that is none": "w1\u2028w2\x0bw3\n",
        "special symbols": "<pad> </s> <unk> <s> w1\n",
        "a word of 100,000 letters": "w" * 100_000 + " w1\n",
        "no line end": "w1 w2",
        "Windows line ends": "w1 w2\r\nw3\r\n",
    }
    found = [
        Case(
            "input",
            f"{name}, {decoding}",
            "fairseq-interactive",
            method(decoding, f"--source-lang {LANGUAGES[0]} --target-lang {LANGUAGES[1]}"),
            WORKS,
            stdin=text,
        )
        for name, text in lines.items()
        for decoding in ("greedy", "iad")
    ]
    sharded = f"--source-lang {LANGUAGES[0]} --target-lang {LANGUAGES[1]} --num-shards 2"
    found.append(
        Case(
            "input",
            "a share of lines",
            "fairseq-interactive",
            method("beam", sharded),
            REFUSED,
            "--num-shards 2",
            stdin="w1 w2\n",
        )
    )
    quiet = "--skip-invalid-size-inputs-valid-test --max-source-positions 7"
    found.append(Case("input", "sentences that are too long", GENERATE, method("iad", ""), WORKS))
    found.append(
        Case(
            "input",
            "sentences that are too long, to be left out",
            GENERATE,
            method("iad", quiet),
            WARNED,
            "invalid size",
            lossless=False,
        )
    )
    return found


def full_cases() -> list[Case]:
    """A disk that is full after some thousand bytes: what was there stays, and no half of a result is left."""
    table = [
        ("aggdec audit", "--path {model} --decoding greedy --output {tmp}/old", "/old."),
        (
            "aggdec trace",
            "--path {model} --decoding iad --report {tmp}/old.html",
            "old.html",
        ),
        (
            "aggdec bench",
            "--path {model} --output {tmp}/old --threads 1 --system a=--beam\0001",
            "old.json",
        ),
        ("aggdec distill", TEACHER, "the same command goes on"),
    ]

    def make(bench: Bench, tmp: Path) -> None:
        for name in ("old.json", "old.md", "old.html"):
            (tmp / name).write_text("an older result")

    return [
        Case(
            "a full disk",
            command,
            command,
            options,
            REFUSED,
            says,
            make,
            writes="distill" in command,
            disk=300,
        )
        for command, options, says in table
    ]


def cases() -> list[Case]:
    return [
        *distill_cases(),
        *text_cases(),
        *tool_cases(),
        *training_cases(),
        *input_cases(),
        *full_cases(),
    ]
