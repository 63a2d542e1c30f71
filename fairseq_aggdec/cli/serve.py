"""``aggdec serve``: offers a model to other programs and to a browser, over HTTP."""

import ast
import functools
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import fairseq_aggdec
from fairseq_aggdec.cli.parsers import parsed
from fairseq_aggdec.startup import installing

# Arguments of from_pretrained that the command line has under these names.
OWN = {name: f"--{name}" for name in ("beam", "decoding", "device")} | {
    "path": "MODEL",
    "data": "DATA",
}
NEEDED = (
    "starlette",
    "uvicorn",
    "prometheus_client",
    "python_multipart",
    "jinja2",
    "langcodes",
    "language_data",
)


logger = logging.getLogger(__name__)


def options(assignments: Sequence[str]) -> dict[str, Any]:
    """``["max_len_b=200", "spm=a.model"]`` -> ``{"max_len_b": 200, "spm": "a.model"}``."""
    values = {}
    for one in assignments:
        name, equals, text = one.partition("=")
        if not equals:
            raise SystemExit(f"error: --option {one}: give NAME=VALUE")
        if name in OWN:
            raise SystemExit(f"error: --option {one}: give {OWN[name]}")
        try:
            values[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            values[name] = text
    return values


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


def of_hub(name: str, int8: bool, chosen: dict[str, Any]) -> str:
    """The packed folder of a model of the hub; ``source_lang`` and ``target_lang`` of the options choose its pair."""
    from fairseq_aggdec.convert import published

    logger.warning("%s: fetching, converting and packing it, unless that was done before", name)
    pair = (chosen.pop(f"{side}_lang", None) for side in ("source", "target"))
    return str(published.packed(name, "int8" if int8 else "fp32", *pair))


def main(words: Sequence[str] | None = None) -> None:
    args = parsed("serve", words)
    keys = read_keys(args.api_key_file)
    installing.need("aggdec serve", "serve", *NEEDED)
    from fairseq_aggdec.serve.app import Service
    from fairseq_aggdec.serve.limits import ServiceSettings
    from fairseq_aggdec.serve.running import announce, bound, run
    from fairseq_aggdec.serve.workers import divided

    if args.workers > 1 and not hasattr(os, "fork"):
        raise SystemExit("error: --workers: this system has no fork; start several services")
    more = options(args.option)
    try:
        if installing.is_name_of_hub(args.model):
            args.model = of_hub(args.model, args.int8, more)
        elif args.int8:
            more.setdefault("int8", "all")
    except (TypeError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
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
            **more,
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
