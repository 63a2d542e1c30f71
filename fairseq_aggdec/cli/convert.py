"""Convert a model of Hugging Face transformers to a fairseq checkpoint with dictionaries and subword model.

    aggdec convert opus-mt-en-de en-de
    aggdec convert m2m100_418M m2m --source-lang en --target-lang fr

Marian (OPUS-MT), M2M100, NLLB, BART, mBART and mBART-50 are read. The commands that decode with the result are printed.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_aggdec.convert.checkpoint import Converted, convert
from fairseq_aggdec.models.swish_transformer import NAME as SWISH

SHORT = {"_name": "", "source_lang": "-s", "target_lang": "-t"}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aggdec convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="with config.json, weights and tokenizer"
    )
    parser.add_argument("output", type=Path, metavar="OUT", help="a new folder")
    parser.add_argument("--source-lang", metavar="CODE", help="as the model names it")
    parser.add_argument("--target-lang", metavar="CODE", help="as the model names it")
    return parser


def words(kind: str, options: Mapping[str, Any]) -> Iterable[str]:
    """Options of a command line; `kind` is the option that takes the name."""
    for name, value in options.items():
        yield f"--{kind}" if name == "_name" else SHORT.get(name, f"--{name.replace('_', '-')}")
        if value is not True:
            yield str(value)


def commands(made: Converted) -> dict[str, str]:
    """What decodes text, line by line: with stock fairseq and with this package."""
    shared = [
        str(made.output),
        *("--path", str(made.output / "model.pt")),
        *words("bpe", made.pieces),
        *words("", made.generation),
    ]
    task = [*words("task", made.task)]
    plain = shlex.join(["fairseq-interactive", *shared, *task])
    if made.arch == SWISH:
        plain += ' --user-dir "$(aggdec --user-dir)"'
    own = task[2:] if made.task["_name"] == "translation" else task
    return {"stock fairseq": plain, "faster": shlex.join(["aggdec-interactive", *shared, *own])}


def main(arguments: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(arguments)
    if args.output.exists():
        raise SystemExit(f"error: {args.output} exists: name a new folder")
    made = convert(args.folder, args.output, args.source_lang, args.target_lang)
    for note in made.notes:
        print(note)
    for name, command in commands(made).items():
        print(f"{name}:\n  {command}")


if __name__ == "__main__":
    main()
