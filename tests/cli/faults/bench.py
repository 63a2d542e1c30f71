"""A work-place for faults: data, checkpoints, tables, and running a command on them as a user does, in this process."""

from __future__ import annotations

import functools
import hashlib
import io
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fairseq_cli import generate, interactive, train, validate

from fairseq_aggdec.cli import fairseq_commands, main, upgrade_checkpoint
from fairseq_aggdec.distill import distilled_folder
from scripts import random_models
from scripts.recipes import grow
from scripts.recipes.lattice import recall_table
from tests.cli.commands import PLUGIN, log_lines
from tests.random_models import random_tables as tables
from tests.support import make_dictionary, random_sources

REFUSED, WARNED, WORKS = "refused", "warned", "works"
LANGUAGES = (random_models.SOURCE, random_models.TARGET)
PAIR = "-".join(LANGUAGES)
SENTENCES = {"train": 12, "valid": 4, "test": 5}
SMALL = ["--encoder-embed-dim", "16", "--decoder-embed-dim", "16", "--encoder-layers", "1"]
SMALL += ["--decoder-layers", "1", "--encoder-ffn-embed-dim", "32", "--decoder-ffn-embed-dim", "32"]
SMALL += ["--encoder-attention-heads", "2", "--decoder-attention-heads", "2", "--dropout", "0"]
SMALL += ["--max-source-positions", "40", "--max-target-positions", "40"]
MODELS: dict[str, list[str]] = {
    "model": ["transformer", *SMALL],
    "lattice": ["lattice_transformer", *SMALL],
    "interleaved": ["interleaved_transformer", *SMALL, "--directions", "2"],
    "blockwise": ["blockwise_transformer", *SMALL, "--block-size", "3"],
    "drafter": ["nar_drafter", *SMALL, "--block-size", "4"],
}
OWN_MODEL = {"lattice": "lattice", "interleaved": "interleaved", "blockwise": "blockwise"}
CUT = ["--max-len-a", "0", "--max-len-b", "9"]
COMMON = ["--cpu", "--num-workers", "0", "--batch-size", "2", "--beam", "1", *CUT, *PLUGIN[:2]]


@dataclass(eq=False)
class Bench:
    """The folder that all cases read and none may change: ``data``, ``NAME.pt`` of every model, ``lattice``."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.pt"

    def make(self) -> None:
        dictionary = make_dictionary()
        (self.data / distilled_folder.TEXT).mkdir(parents=True)
        for seed, language in enumerate(LANGUAGES):
            dictionary.save(str(self.data / f"dict.{language}.txt"))
            for subset, count in SENTENCES.items():
                rows = [torch.tensor([*row, 2]) for row in random_sources(count + seed, count, 8)]
                name = f"{subset}.{PAIR}"
                distilled_folder.write_side(self.data, name, language, dictionary, rows)
        for seed, (name, flags) in enumerate(MODELS.items()):
            write_model(self.path(name), self.data, flags, seed)
        tables().save(self.folder / "lattice", dictionary, dictionary, {"command": "test"})


def write_model(path: Path, data: Path, flags: Sequence[str], seed: int) -> None:
    """A random model that says various things; a fresh one repeats itself."""
    random_models.write_checkpoint(path, data, *flags, seed=seed)
    state = torch.load(path, weights_only=True)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in state["model"].items():
        if weight.dim() > 1:
            spread = 0.4 if "embed" in name else 1.5 * weight.size(-1) ** -0.5
            weight.normal_(0, spread, generator=generator)
    torch.save(state, path)


# -- cases


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        group, name: for the page and the name of the test.
        command: one of :data:`COMMANDS`.
        options: with ``{data}``, ``{tmp}``, ``{model}`` ... filled in.
        outcome: its class.
        says: pattern-free text that the message has to contain; empty for ``works``.
        make: makes the faulty files, in a folder of the case's own.
        lossless: what is decoded is what stock gives.
        as_stock: stock with the options of the case, not with those that greedy methods know.
        writes: the case may change its own folder (what it was asked to write).
        stdin: of the command.
        disk: bytes after which a file has no room; None: no limit.
    """

    group: str
    name: str
    command: str
    options: str
    outcome: str
    says: str = ""
    make: Callable[[Bench, Path], object] | None = None
    lossless: bool = True
    as_stock: bool = False
    writes: bool = False
    stdin: str = ""
    disk: int | None = None

    @property
    def id(self) -> str:
        return f"{self.group}: {self.name}"


@dataclass
class Ended:
    """How a command ended: what it printed and logged, and its message where it did not end well."""

    stdout: str
    log: list[str]
    error: BaseException | None = None
    message: str = ""

    def hypotheses(self) -> dict[str, str]:
        lines = [line.split("\t") for line in self.stdout.splitlines() if line.startswith("H-")]
        return {line[0]: line[2] for line in lines}


def tool(name: str) -> Callable[[], Any]:
    return lambda: sys.exit(main.run_tool(name))


COMMANDS: dict[str, Callable[[], Any]] = {
    "fairseq-generate": generate.cli_main,
    "fairseq-interactive": interactive.cli_main,
    "fairseq-train": train.cli_main,
    "fairseq-validate": validate.cli_main,
    "aggdec upgrade-checkpoint": upgrade_checkpoint.main,
    "aggdec-generate": lambda: sys.exit(fairseq_commands.generate()),
    "scripts.recipes.lattice.recall_table": recall_table.main,
    "scripts.recipes.grow": grow.main,
} | {
    f"aggdec {name}": tool(name)
    for name in (
        "distill",
        "audit",
        "bench",
        "trace",
        "lattice-tables",
        "average-checkpoints",
    )
}
GENERATING = ("fairseq-generate", "fairseq-interactive")
OF_GENERATE = (
    *GENERATING,
    *(f"aggdec {n}" for n in ("audit", "bench", "trace")),
)
OPTIONS = {name: [*COMMON, *PLUGIN[2:]] for name in GENERATING}
OPTIONS |= {name: COMMON for name in OF_GENERATE if name not in GENERATING}
OPTIONS["fairseq-interactive"] = [*OPTIONS["fairseq-interactive"], "--buffer-size", "2"]
for name in ("audit", "bench", "trace"):  # which have --batch-sizes, or none
    OPTIONS[f"aggdec {name}"] = [*COMMON[:3], *COMMON[5:]]
OPTIONS["aggdec distill"] = ["--cpu", "--batch-size", "4", "--beam", "1", *CUT]
OPTIONS["aggdec-generate"] = [*COMMON, "--source-lang", LANGUAGES[0], "--target-lang", LANGUAGES[1]]
OPTIONS["fairseq-train"] = [*PLUGIN, "--cpu", "--lr", "0.001", "--optimizer", "adam"]
OPTIONS["fairseq-train"] += ["--max-update", "1", "--batch-size", "4", "--num-workers", "0"]
OPTIONS["fairseq-train"] += ["--no-progress-bar"]
OPTIONS["fairseq-validate"] = [*PLUGIN, "--cpu", "--num-workers", "0", "--batch-size", "2"]


def run(bench: Bench, case: Case, tmp: Path) -> Ended:
    """Runs a case's command in this process."""
    places: dict[str, Any] = {name: bench.path(name) for name in MODELS}
    filled = case.options.format(
        tmp=tmp, data=bench.data, tables=bench.folder / "lattice", **places
    )
    given = [word.replace("\0", " ") for word in filled.split()]
    if not any(word.startswith(("DATA=",)) for word in given):
        given = [f"DATA={bench.data}", *given]
    data = next(word.removeprefix("DATA=") for word in given if word.startswith("DATA="))
    given = [word for word in given if not word.startswith("DATA=")]
    argv = [case.command, *([data] if data else []), *OPTIONS.get(case.command, []), *given]
    stdout, stderr = io.StringIO(), io.StringIO()
    ended = Ended("", [])
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "stdin", io.StringIO(case.stdin)),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        log_lines() as ended.log,
        small_disk(case.disk),
    ):
        try:
            COMMANDS[case.command]()
        except SystemExit as stopped:
            if stopped.code:
                ended.error = stopped
                text = stopped.code if isinstance(stopped.code, str) else stderr.getvalue()
                ended.message = text.strip().splitlines()[-1] if text.strip() else ""
                if isinstance(stopped.code, str):
                    ended.message = text
        except Exception as error:  # as a traceback of the command would end
            ended.error, ended.message = error, str(error)
    ended.stdout = stdout.getvalue()
    return ended


@contextmanager
def small_disk(size: int | None) -> Iterator[None]:
    """No file may become larger than so many bytes: writing ends as it does on a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[str, str]:
    """Every file and link by name, with a digest of what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = digest(path, path.stat().st_ino, path.stat().st_ctime_ns)
    return found


@functools.cache
def digest(path: Path, node: int, changed: int) -> str:
    """Read once as long as the kernel says that nobody has changed it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- making faulty files


def edited_model(
    name: str, edit: Callable[[dict[str, Any]], object], to: str = "bad.pt"
) -> Callable[[Bench, Path], None]:
    """A checkpoint with something changed."""

    def make(bench: Bench, tmp: Path) -> None:
        state = torch.load(bench.path(name), weights_only=True)
        changed = edit(state)
        torch.save(state if changed is None else changed, tmp / to)

    return make


def broken(name: str, number: float = float("nan"), weight: str = "") -> Callable[..., None]:
    """A checkpoint one weight of which is full of a number."""

    def edit(state: dict[str, Any]) -> None:
        found = weight or "decoder.layers.0.fc2.weight"
        state["model"][found].fill_(number)

    return edited_model(name, edit)


def file_of(name: str, content: bytes | str) -> Callable[[Bench, Path], None]:
    def make(bench: Bench, tmp: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (tmp / name).write_bytes(data)

    return make
