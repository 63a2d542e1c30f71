"""A text with what people write, two models, and ``aggdec-generate --input-file`` within the process of the test."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from unittest import mock

from fairseq_cli import interactive

from fairseq_aggdec.cli import fairseq_commands
from tests.cli.commands import PLUGIN, Result, run
from tests.cli.faults.bench import CUT, LANGUAGES, MODELS, write_model
from tests.support import make_dictionary

SIDES = ["--source-lang", LANGUAGES[0], "--target-lang", LANGUAGES[1]]
OPTIONS = ["--cpu", "--beam", "2", *CUT, *SIDES]
SHARDS = ["--shard-size", "8", "--batch-size", "3"]
LINES = 200
LONGEST = 30  # tokens


def write_folder(folder: Path) -> Path:
    """Dictionaries, two models, and a text with what people write: nothing, blanks, words that no one knows."""
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


def main(folder: Path, target: Path, *more: str | Path, source: str = "text") -> int:
    given = arguments(folder, target, *more, source=source)
    with mock.patch.object(sys, "argv", ["aggdec-generate", *given]):
        return fairseq_commands.generate()


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


def stock_output(folder: Path) -> bytes:
    """What fairseq-interactive makes of the text, a line for each."""
    texts = stock(folder).texts()
    assert len(texts) == LINES
    assert len(set(texts.values())) > 20
    return "".join(texts[str(number)] + "\n" for number in range(LINES)).encode()


def shards(target: Path) -> list[str]:
    return [path.name for path in Path(f"{target}.parts").glob("*.shard")]
