"""``--decoding greedy``, and the generator that it shares with all methods that draft and verify."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.refusing import (
    acceptance_rule,
    announce_int8,
    announce_ngram_blocking,
    refuse_prefix_function,
    refuse_slots,
    refuse_unsupported,
    set_greedy_beam,
)
from fairseq_aggdec.search.aligned import AlignedGenerator
from fairseq_aggdec.search.drafter import Drafter, EmptyDrafter
from fairseq_aggdec.search.generator import DraftAndVerifyGenerator

logger = logging.getLogger(__name__)

Draft = Callable[[Request], Drafter]


def loop_generator(
    name: str, draft: Draft, request: Request, kind: Any = DraftAndVerifyGenerator
) -> Any:
    """The generator of a method of the loop.

    Args:
        name: of the method.
        draft: builds its drafter.
        kind: the class of the generator.

    Raises:
        ValueError: an option or a model that the loop cannot honour, in one sentence.
    """
    set_greedy_beam(request.args, name)
    announce_ngram_blocking(request.args)
    announce_int8(request.cfg)
    if request.option("print_alignment"):
        kind = AlignedGenerator
    extra = request.computing() | {
        "shortlist": _shortlist(request),
        "drafter": request.drafter(name) if request.drafter else draft(request),
        "accept": acceptance_rule(
            request.cfg.acceptance, name, getattr(request.task, "first_number", None)
        ),
    }
    return request.make(kind, extra)


def _shortlist(request: Request) -> Any:
    if not request.cfg.shortlist:
        return None
    from fairseq_aggdec.methods.shared.candidates import build_shortlist

    return build_shortlist(request.cfg, request.task, request.args)


def refusing(name: str) -> Callable[[Request], None]:
    """Refuses what a method that finds one greedy hypothesis cannot honour."""

    def refuses(request: Request) -> None:
        refuse_unsupported(request.args, request.extra, name)
        refuse_prefix_function(request.prefix_allowed_tokens_fn, name)
        refuse_slots(request.models, name)

    return refuses


def loop_reads(settings: Settings) -> set[str]:
    """Options of all methods of the loop, but those about drafts."""
    reads = {"strict", "shortlist", "no_graphs", "low_memory"}
    if settings.int8 != "drafts":
        reads.add("int8")
    return reads | ({"lattice", "lattice_smoothing"} if settings.shortlist else set())


def loop_method(
    name: str,
    draft: Draft,
    reads: Callable[[Settings], set[str]] = lambda settings: set(),
) -> Method:
    """A method that drafts and verifies, by how it drafts and the options that it reads for that."""

    def build(request: Request) -> Any:
        return loop_generator(name, draft, request)

    def all_reads(settings: Settings) -> set[str]:
        return loop_reads(settings) | reads(settings)

    return Method(name, all_reads, build, refusing(name), drafter=draft)


METHOD = loop_method("greedy", lambda request: EmptyDrafter())
