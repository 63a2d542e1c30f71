"""Offers a model to other programs and to a browser, over HTTP.

    aggdec serve model.pt data-bin --port 8000
    aggdec serve facebook/nllb-200-distilled-600M --int8
    aggdec serve model.pt data-bin --option max_len_b=200 --option spm=spm.model --api-key-file keys.txt

answers LibreTranslate's POST /translate and GET /languages, POST /generate with everything that the Python interface
offers, GET /health and GET /metrics, and has a page at /. Sentences of waiting requests are decoded together. SIGTERM
and Ctrl-C end it when all accepted requests are answered.
"""

import argparse
import functools
import re
import shlex
from pathlib import Path

from fairseq_aggdec.cli.parsers import number
from fairseq_aggdec.cli.parsers.files import refuse_missing, split
from fairseq_aggdec.startup.installing import is_name_of_hub


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    take_files(parser)
    count = number(1)
    add(
        "model",
        metavar="MODEL",
        help="checkpoint, or a folder of `aggdec pack`; several, joined by ':', are an ensemble; or OWNER/MODEL, "
        "a name of the Hugging Face hub, which is downloaded, converted and packed once",
    )
    add(
        "data",
        metavar="DATA",
        nargs="?",
        help="folder with the dictionaries, as fairseq-preprocess wrote it; a packed folder has its own",
    )
    add("--host", default="127.0.0.1", help="address to listen at (default: this machine only)")
    add("--port", type=number(0, 65535), default=8000, help="0: any that is free (default: 8000)")
    add("--decoding", default="beam", help="the method, as --decoding of aggdec-generate")
    add("--beam", type=count, default=5, help="beam size (default: 5)")
    add("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    add("--int8", action="store_true", help="compute in 8 bits, as --int8 of aggdec-generate")
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another argument of fairseq_aggdec.from_pretrained, such as spm=spm.model; any number of times",
    )
    add(
        "--cors-origin",
        action="append",
        default=[],
        dest="origins",
        metavar="ORIGIN",
        help="scripts of web pages of this origin may ask: https://example.org, or '*' for all; any number of times",
    )
    add(
        "--url-prefix",
        type=url_prefix,
        default="",
        metavar="/PATH",
        help="of all paths, such as /mt, for a proxy that does not remove it",
    )
    add("--api-key-file", type=Path, help="one key a line; requests must have one of them")
    add(
        "--workers",
        type=count,
        default=1,
        help="processes that answer, each with its own model, queue and metrics; they share a packed folder's memory",
    )
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Options that bound what requests may cost."""
    add, count = parser.add_argument_group("limits").add_argument, number(1)
    add("--max-batch", type=count, default=32, help="sentences decoded together (default: 32)")
    waiting = "milliseconds that a sentence waits for others while nothing is decoded (default: 5)"
    add("--max-wait-ms", type=number(0, kind=float), default=5.0, help=waiting)
    add("--max-queue", type=count, default=1024, help="sentences that may wait (default: 1024)")
    add("--max-bytes", type=count, default=1 << 20, help="of a request (default: %(default)s)")
    most = "that a request may ask for (default: "
    add("--max-beam", type=count, help=f"widest beam {most}32, less with a small --max-batch)")
    longest = f"tokens of the longest output {most}that of the service's own options)"
    add("--max-len", type=count, help=longest)
    work = "sentences x beam x longest output of a request (default: as --max-queue sentences with the service's own "
    work += "options)"
    add("--max-work", type=count, help=work)
    add(
        "--max-attention",
        type=number(0),
        default=1_000_000,
        help=f"numbers of the attention {most}%(default)s)",
    )
    add(
        "--timeout",
        type=number(0, kind=float, above=True),
        default=60.0,
        help="seconds of every phase of a request: its headers, its body, its answer, reading it (default: 60)",
    )


def url_prefix(text: str) -> str:
    """The prefix of all paths, without a slash at its end."""
    if not re.fullmatch(r"((/[\w.~-]+)+/?)?", text):
        raise argparse.ArgumentTypeError(f"{text}: give a path that begins with /, such as /mt")
    return text.rstrip("/")


def take_files(parser: argparse.ArgumentParser) -> None:
    """Lets ``@FILE`` stand for the arguments in a file."""
    parser.epilog = "@FILE stands for the arguments in a file; what follows # is a comment."
    parser.fromfile_prefix_chars = "@"
    words = functools.partial(shlex.split, comments=True)
    setattr(parser, "convert_arg_line_to_args", words)  # noqa: B010  (mypy forbids to assign to a method)


def check(args: argparse.Namespace) -> None:
    """Refuses files that are not there, and outputs that are."""
    refuse_missing(one for one in split(args.model) if not is_name_of_hub(one))
