"""Offers a model to other programs and to a browser, over HTTP.

    aggdec serve model.pt data-bin --port 8000
    aggdec serve model.pt data-bin --option max_len_b=200 --option spm=spm.model --api-key-file keys.txt

answers LibreTranslate's POST /translate and GET /languages, POST /generate with everything that the Python interface
offers, GET /health and GET /metrics, and has a page at /. Sentences of waiting requests are decoded together. SIGTERM
and Ctrl-C end it when all accepted requests are answered.
"""

import argparse
import ast
import functools
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import fairseq_aggdec
from fairseq_aggdec import installing
from fairseq_aggdec.cli import number, tool_parser

# Arguments of from_pretrained that the command line has under these names.
OWN = {name: f"--{name}" for name in ("beam", "decoding", "device")} | {
    "path": "MODEL",
    "data": "DATA",
}
NEEDED = ("starlette", "uvicorn", "prometheus_client", "python_multipart", "jinja2")


logger = logging.getLogger(__name__)


def build_parser() -> argparse.ArgumentParser:
    add = (parser := tool_parser("serve", __doc__)).add_argument
    take_files(parser)
    count, wait = number(1), number(0, kind=float)
    add(
        "model",
        metavar="MODEL",
        help="checkpoint, or a folder of `aggdec pack`; several, joined by ':', are an ensemble",
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
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another argument of fairseq_aggdec.from_pretrained, such as spm=spm.model; any number of times",
    )
    add("--max-batch", type=count, default=32, help="sentences decoded together (default: 32)")
    waiting = "milliseconds that a sentence waits for others while nothing is decoded (default: 5)"
    add("--max-wait-ms", type=wait, default=5.0, help=waiting)
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
    add("--api-key-file", type=Path, help="one key a line; requests must have one of them")
    add(
        "--workers",
        type=count,
        default=1,
        help="processes that answer, each with its own model, queue and metrics; they share a packed folder's memory",
    )
    return parser


def options(given: Sequence[str]) -> dict[str, Any]:
    """``["max_len_b=200", "spm=a.model"]`` -> ``{"max_len_b": 200, "spm": "a.model"}``."""
    found = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise SystemExit(f"error: --option {one}: give NAME=VALUE")
        if name in OWN:
            raise SystemExit(f"error: --option {one}: give {OWN[name]}")
        try:
            found[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            found[name] = text
    return found


def warn_of_pieces(translator: Any) -> None:
    """Says so where a model writes pieces of words and nothing was named that joins them."""
    if translator.codec.subwords is not None or translator.post_process is not None:
        return
    words = translator.task.target_dictionary.symbols[:1000]
    for mark, option in (("▁", "spm=spm.model"), ("@@", "bpe=codes")):
        if sum(mark in word for word in words) > len(words) / 10:
            logger.warning(
                "the model reads and writes pieces of words (%s), and so must clients: --option %s takes plain text",
                mark,
                option,
            )


def read_keys(path: Path | None) -> list[str]:
    """The keys of a file; none without a file."""
    if path is None:
        return []
    try:
        keys = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"error: --api-key-file {path} cannot be read: {error}") from None
    if not keys:
        raise SystemExit(f"error: --api-key-file {path} has no keys: write one a line")
    return keys


def take_files(parser: argparse.ArgumentParser) -> None:
    """Lets ``@FILE`` stand for the arguments in a file."""
    parser.epilog = "@FILE stands for the arguments in a file; what follows # is a comment."
    parser.fromfile_prefix_chars = "@"
    words = functools.partial(shlex.split, comments=True)
    setattr(parser, "convert_arg_line_to_args", words)  # noqa: B010  (mypy forbids to assign to a method)


def main(given: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(sys.argv[1:] if given is None else given)
    keys = read_keys(args.api_key_file)
    installing.need("aggdec serve", "serve", *NEEDED)
    from fairseq_aggdec.serve.app import Service
    from fairseq_aggdec.serve.limits import ServiceSettings
    from fairseq_aggdec.serve.running import announce, bound, run
    from fairseq_aggdec.serve.workers import divided

    if args.workers > 1 and not hasattr(os, "fork"):
        raise SystemExit("error: --workers: this system has no fork; start several services")
    address = bound(args.host, args.port)
    ready: Callable[[], object] = functools.partial(announce, address, args.host)
    if args.workers > 1:
        ready = divided(args.workers, ready)
    try:
        translator = fairseq_aggdec.from_pretrained(
            args.model,
            args.data,
            args.decoding,
            beam=args.beam,
            device=args.device,
            **options(args.option),
        )
    except (TypeError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    warn_of_pieces(translator)
    logging.getLogger("fairseq_aggdec.serve").setLevel(logging.INFO)  # a line for each request
    wanted: dict[str, Any] = {
        one.name: getattr(args, one.name, keys) for one in fields(ServiceSettings)
    }
    try:
        service = Service(translator, ServiceSettings(**wanted))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    run(service, address, ready)
