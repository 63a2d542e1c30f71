"""Convert a model of Hugging Face transformers to a fairseq checkpoint with dictionaries and subword model.

    aggdec convert opus-mt-en-de en-de
    aggdec convert m2m100_418M m2m --source-lang en --target-lang fr

    aggdec convert nat-drafter.pt drafter                    a published drafter of generalized aggressive decoding

Marian (OPUS-MT), M2M100, NLLB, BART, mBART and mBART-50 are read. The commands that decode with the result are printed.
"""

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_aggdec.cli import number, tool_parser
from fairseq_aggdec.convert import published_drafter
from fairseq_aggdec.convert.checkpoint import Converted, convert
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.models.swish_transformer import NAME as SWISH

# Lines of text -> lines of pieces, a code such as >>fra<< first, the arguments last.
TO_PIECES = (
    "import re, sys, sentencepiece as s; p = s.SentencePieceProcessor(model_file=sys.argv[1]); c = '^>>.*?<<'; "
    "[print(*re.findall(c, l), *p.encode(re.sub(c, '', l.strip()), out_type=str), *sys.argv[2:]) for l in sys.stdin]"
)
HUB = (
    "import sys; from fairseq.models.bart import BARTModel; m = BARTModel.from_pretrained({!r}, **{}).eval(); "
    "print(*m.sample(sys.stdin.read().splitlines(), **{}), sep='\\n')"
)
SHORT = {"_name": "", "source_lang": "-s", "target_lang": "-t"}


def build_parser() -> argparse.ArgumentParser:
    parser = tool_parser("convert", __doc__)
    add = parser.add_argument
    add(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="with config.json, weights and tokenizer; or a published drafter",
    )
    add("output", type=Path, metavar="OUT", help="a new folder")
    add("--source-lang", metavar="CODE", help="as the model names it")
    add("--target-lang", metavar="CODE", help="as the model names it")
    add("--block-size", type=number(1), metavar="K", help="of a drafter whose file does not say it")
    add(
        "--int8",
        action="store_true",
        help="write OUT/int8 too: packed weights in 8 bits, as aggdec pack does",
    )
    return parser


def words(kind: str, options: Mapping[str, Any]) -> Iterable[str]:
    """Options of a command line; `kind` is the option that takes the name."""
    for name, value in options.items():
        yield f"--{kind}" if name == "_name" else SHORT.get(name, f"--{name.replace('_', '-')}")
        if value is not True:
            yield str(value)


def commands(made: Converted) -> dict[str, str]:
    """Commands that decode a text, line by line, by the name of what decodes."""
    model = str(made.output / "model.pt")
    shared = [str(made.output), "--path", model, *words("", made.generation)]
    before = ""
    if made.suffix is None:
        shared += words("bpe", made.pieces)
    else:
        shared += ["--post-process", "sentencepiece"]
        pieces = made.pieces["sentencepiece_model"]
        before = shlex.join(["python", "-c", TO_PIECES, pieces, *made.suffix.split()]) + " | "
    task = [*words("task", made.task)]
    own = task[2:] if made.task["_name"] == "translation" else task
    plain = before + shlex.join(["fairseq-interactive", *shared, *task])
    if made.arch == SWISH:
        plain += ' --user-dir "$(aggdec --user-dir)"'
    found = {
        "stock fairseq": plain,
        "faster": before + shlex.join(["aggdec-interactive", *shared, *own]),
    }
    if made.pieces["_name"] == "gpt2":
        options = {name: value for name, value in made.pieces.items() if name != "_name"}
        code = HUB.format(str(made.output), options, made.generation)
        found["stock fairseq's hub"] = shlex.join(["python", "-c", code])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(arguments)
    if args.output.exists():
        raise SystemExit(f"error: {args.output} exists: name a new folder")
    if args.folder.is_file():
        published_drafter.convert(args.folder, args.output, args.block_size)
        print(f"--decoding gad --drafter-path {args.output / 'model.pt'}")
        return
    made = convert(args.folder, args.output, args.source_lang, args.target_lang)
    if args.int8:
        pack(made.output / "model.pt", made.output, made.output / "int8", "int8")
        print(f"packed in 8 bits, for aggdec serve and Python:\n  {made.output / 'int8'}")
    for note in made.notes:
        print(note)
    for name, command in commands(made).items():
        print(f"{name}:\n  {command}")
