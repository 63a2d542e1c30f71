"""Running fairseq's commands, and a small corpus with a model trained on it, shared by the tests of the command line.

Commands run inside the test process, as ``fairseq_cli`` offers them, except where the end of a process matters.
"""

from __future__ import annotations

import io
import logging
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from fairseq import checkpoint_utils
from fairseq_cli import generate, interactive, train

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ["--user-dir", str(ROOT / "fairseq_aggdec"), "--task", "translation_aggdec"]
WORDS = [f"{a}{b}" for a in "bdfg" for b in "aeiou"]
PIECES = ["un@@", "re@@"]  # prefixes of words, as subword tools mark them
SENTENCES = {
    "train": 1500,
    "valid": 45,
    "test": 53,
}  # no multiples of 8: stock would lose the last ones
MODEL = shlex.split(
    "--arch transformer --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32 "
    "--encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64 --encoder-attention-heads 2 --decoder-attention-heads 2 "
    "--max-source-positions 40 --max-target-positions 40 --share-all-embeddings --dropout 0"
)
TRAINING = shlex.split(
    "--optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 60 --batch-size 32 --clip-norm 1 "
    "--cpu --seed 3 --num-workers 0 --no-progress-bar --disable-validation"
)
CUT = ["--max-len-b", "20"]
# Whether drafts pay for a model so small is not what is tested.
LONG_DRAFTS = ["--draft-tokens", "all"]


# -- running commands


@dataclass
class Result:
    """What a command printed and what it logged."""

    stdout: str
    log: list[str]

    def lines(self, kind: str) -> dict[str, str]:
        """``D``, ``H``, ... lines: name of the sentence -> what follows its tab."""
        found = re.findall(rf"^{kind}-(\S+)\t(.*)$", self.stdout, re.MULTILINE)
        assert len(dict(found)) == len(found), "a sentence came twice"
        return dict(found)

    def texts(self, kind: str = "D") -> dict[str, str]:
        """The same without the score."""
        return {name: line.split("\t", 1)[1] for name, line in self.lines(kind).items()}

    def logged(self, pattern: str) -> list[str]:
        return [line for line in self.log if re.search(pattern, line)]


@contextmanager
def log_lines() -> Iterator[list[str]]:
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Collect(logging.INFO)
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def run(command: Callable[[], Any], *arguments: str | Path, stdin: str = "") -> Result:
    """Runs a fairseq command in this process, as if it were the first one there."""
    # fairseq keeps the best validation score of a training as an attribute of this function.
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    stdout = io.StringIO()
    module = str(getattr(command, "__module__", ""))
    argv = [f"fairseq-{module.rpartition('.')[2]}", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        # It takes every second handler away from the log.
        mock.patch("fairseq_cli.validate.reset_logging"),
        redirect_stdout(stdout),
        log_lines() as log,
    ):
        command()
    return Result(stdout.getvalue(), log)


def run_process(
    name: str, *arguments: str | Path, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs an installed fairseq command in a process of its own."""
    return subprocess.run(
        [warm.python(), "-m", f"fairseq_cli.{name}", *map(str, arguments)],
        input=stdin,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
    )


# -- data and model


def edited(words: Sequence[str]) -> list[str]:
    """Two of the words are replaced, one disappears, the others are copied."""
    changed = {"ba": "bo", "fe": "fu", "gi": None}
    target = [changed.get(word, word) for word in words]
    return [word for word in target if word] or list(words[:1])


def write_corpus(folder: Path) -> None:
    generator = random.Random(7)
    for split, count in SENTENCES.items():
        sources = []
        for _ in range(count):
            words = generator.choices(WORDS, k=generator.randint(3, 12))
            position = generator.randrange(len(words))
            words[position:position] = generator.choice([[], [], [generator.choice(PIECES)]])
            sources.append(words)
        if split == "test":
            sources[5][1], sources[6] = "unheard", ["never", "heard"]  # unknown words
        targets = [edited(words) for words in sources]
        for side, sentences in (("src", sources), ("tgt", targets)):
            (folder / f"{split}.{side}").write_text(
                "".join(" ".join(words) + "\n" for words in sentences)
            )


def preprocess_arguments(folder: Path, destination: Path) -> list[str | Path]:
    arguments: list[str | Path] = [
        "--source-lang",
        "src",
        "--target-lang",
        "tgt",
        "--destdir",
        destination,
    ]
    for split in SENTENCES:
        arguments += [f"--{split}pref", folder / split]
    return [*arguments, "--joined-dictionary", "--workers", "1"]


@dataclass
class Trained:
    """A folder with text, binarised data and checkpoints of one training run."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / "checkpoint_last.pt"

    @property
    def early(self) -> Path:
        (found,) = (self.folder / "checkpoints").glob("checkpoint_*_300.pt")
        return found

    def source(self, split: str = "test") -> list[str]:
        return (self.folder / f"{split}.src").read_text().splitlines()

    def generate(
        self,
        decoding: str,
        *arguments: str | Path,
        path: str | Path | None = None,
        data: Path | None = None,
    ) -> Result:
        options = shlex.split("--cpu --num-workers 0 --no-progress-bar --beam 1 --batch-size 7")
        options += [*PLUGIN, "--decoding", decoding, "--path", str(path or self.checkpoint), *CUT]
        options += LONG_DRAFTS if decoding == "iad" else []
        return run(generate.cli_main, data or self.data, *options, *arguments)

    def interactive(self, decoding: str, stdin: str, *arguments: str | Path) -> Result:
        options: list[str | Path] = [*PLUGIN, "--decoding", decoding, "--path", self.checkpoint]
        options += ["--cpu", "--beam", "1", *CUT, "--source-lang", "src", "--target-lang", "tgt"]
        options += LONG_DRAFTS if decoding == "iad" else []
        return run(interactive.cli_main, self.data, *options, *arguments, stdin=stdin)

    def train(self, *arguments: str | Path) -> Result:
        return run(train.cli_main, self.data, *MODEL, *TRAINING, *arguments)
