"""Chooses the generator of a request: which method serves it, what that one refuses, what has no effect."""

import logging
from dataclasses import replace
from importlib import import_module
from typing import Any

from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.kinds import VERIFIED
from fairseq_aggdec.methods.options.settings import Settings, spelling
from fairseq_aggdec.search.engines import NOT_IN_STOCK
from fairseq_aggdec.search.errors import refusal

logger = logging.getLogger(__name__)

METHODS: dict[str, Method] = {}  # those that were asked for


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
    named = request.cfg.decoding
    if scores := bool(request.option("score_reference")):
        refuse_to_score(named)
        if named != "stock":
            request.say_left("left to stock fairseq: --score-reference")
    method = method_of("stock" if scores else named)
    while other := method.becomes(request):
        method = method_of(other)
    request.cfg = settings = replace(request.cfg, decoding=method.name)
    where = method.name if named == method.name else f"{named}, which is {method.name} here"
    if settings.shortlist and method.name not in VERIFIED:
        raise ValueError(refusal("--shortlist", where, f"it is for {', '.join(VERIFIED)}"))
    for option in () if request.quiet else unused(settings, method):
        logger.warning("%s has no effect with --decoding %s", option, where)
    method.refuses(request)
    generator = method.build(request)
    if prepare and method.name != "stock":
        generator.prepare()
    return generator


def refuse_to_score(decoding: str) -> None:
    """Raises ``ValueError`` for ``--score-reference`` with a method that stock fairseq, which scores, has not."""
    if (reason := NOT_IN_STOCK.get(decoding)) is not None:
        raise ValueError(
            refusal("--score-reference", decoding, f"stock fairseq scores references, and {reason}")
        )


def unused(settings: Settings, method: Method) -> list[str]:
    """The options that were given and have no effect with a method, as they are spelt."""
    return sorted(map(spelling, settings.said - {"decoding", *method.reads(settings)}))
