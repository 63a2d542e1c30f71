"""``aggdec convert``: writes a model of Hugging Face transformers as a fairseq checkpoint."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_aggdec.cli.parsers import parsed
from fairseq_aggdec.convert import published_drafter
from fairseq_aggdec.convert.checkpoint import Converted, convert
from fairseq_aggdec.convert.pack import pack
from fairseq_aggdec.convert.published import fetched
from fairseq_aggdec.models.swish_transformer import NAME as SWISH
from fairseq_aggdec.startup.installing import is_name_of_hub

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
    named_task = task[2:] if made.task["_name"] == "translation" else task
    plain = before + shlex.join(["fairseq-interactive", *shared, *task])
    if made.arch == SWISH:
        plain += ' --user-dir "$(aggdec --user-dir)"'
    by_use = {
        "stock fairseq": plain,
        "faster": before + shlex.join(["aggdec-interactive", *shared, *named_task]),
    }
    if made.pieces["_name"] == "gpt2":
        options = {name: value for name, value in made.pieces.items() if name != "_name"}
        code = HUB.format(str(made.output), options, made.generation)
        by_use["stock fairseq's hub"] = shlex.join(["python", "-c", code])
    return by_use


def main(arguments: Sequence[str] | None = None) -> None:
    args = parsed("convert", arguments)
    if Path(args.folder).is_file():
        published_drafter.convert(Path(args.folder), args.output, args.block_size)
        print(f"--decoding gad --drafter-path {args.output / 'model.pt'}")
        return
    folder = fetched(args.folder) if is_name_of_hub(args.folder) else Path(args.folder)
    made = convert(folder, args.output, args.source_lang, args.target_lang)
    if args.int8:
        pack(made.output / "model.pt", made.output, made.output / "int8", "int8")
    for note in made.notes:
        print(note)
    for name, command in commands(made).items():
        print(f"{name}:\n  {command}")
    model, data = (shlex.quote(str(one)) for one in (made.output / "model.pt", made.output))
    print(f"a service, and a page for a browser:\n  aggdec serve {model} {data}")
    if args.int8:
        packed = shlex.quote(str(made.output / "int8"))
        print(f"the service in 8 bits, from packed weights:\n  aggdec serve {packed}")
    arguments = f"{str(made.output / 'model.pt')!r}, {str(made.output)!r}"
    print(f"Python:\n  fairseq_aggdec.from_pretrained({arguments}).translate([...])")
