"""The table of methods. A new method is one file and one line here."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib import import_module
from typing import Any

from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.search.errors import refusal

logger = logging.getLogger(__name__)

# Of each method, in the order of --help: the name, which is that of its file in this room, and one sentence.
HELP = {
    "beam": "what stock fairseq gives with the same --beam, faster",
    "stock": "fairseq's own generator",
    "greedy": "one token at a time on the cached decoder",
    "iad": "input-guided aggressive decoding, drafts from the source",
    "gad": "generalized aggressive decoding, drafts of a non-autoregressive model (--drafter-path)",
    "nar": "the non-autoregressive drafter alone",
    "blockwise": "the model's own extra heads draft (--arch blockwise_transformer)",
    "interleaved": "beam search with several words per step (--arch interleaved_transformer)",
    "lattice": "the best path through a lattice of candidates (--arch lattice_transformer)",
}
METHODS: dict[str, Method] = {}  # those that were asked for
# Methods of the greedy loop in which a verifier checks drafts.
VERIFIED = ("greedy", "iad", "gad", "blockwise")


def method_of(name: str) -> Method:
    """A method, whose file is imported when it is first asked for: a process that decodes loads what it runs."""
    if name not in METHODS:
        METHODS[name] = import_module(f"fairseq_aggdec.methods.{name}").METHOD
    return METHODS[name]


def build_generator(request: Request, prepare: bool = True) -> Any:
    """The generator of ``--decoding``, or of what the method becomes with these options and models.

    Args:
        prepare: pack the weights now, so that the first answer takes no longer than later ones. Training builds its
            generator before the models have their device, and changes them.

    Raises:
        FileNotFoundError, CheckpointError, ValueError: what does not fit, in one sentence.
    """
    asked = request.cfg.decoding
    method = method_of("stock" if request.option("score_reference") else asked)
    while other := method.becomes(request):
        method = method_of(other)
    request.cfg = settings = replace(request.cfg, decoding=method.name)
    where = method.name if asked == method.name else f"{asked}, which is {method.name} here"
    if settings.shortlist and method.name not in VERIFIED:
        raise ValueError(refusal("--shortlist", where, f"it is for {', '.join(VERIFIED)}"))
    announce_unused(settings, method, where)
    method.refuses(request)
    generator = method.build(request)
    if prepare and method.name != "stock":
        generator.prepare()
    return generator


def unused(settings: Settings, method: Method) -> list[str]:
    """The options that were given and have no effect with a method, as they were spelt."""
    reads = method.reads(settings)
    found = (spelt for name, spelt in settings.said.items() if name not in {"decoding", *reads})
    # In training --block-size is an option of the architecture.
    return [spelt for spelt in found if spelt != "--block-size" or not settings.eval_bleu]


def announce_unused(settings: Settings, method: Method, where: str) -> None:
    for option in unused(settings, method):
        logger.warning("%s has no effect with --decoding %s", option, where)


def build_drafter(name: str, request: Request) -> Drafter:
    """The drafter of a method that has one."""
    build = method_of(name).drafter
    assert build is not None, f"--decoding {name} has no drafter"
    return build(request)
