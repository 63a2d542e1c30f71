"""``--decoding greedy``, and the generator that it shares with all methods that draft and verify."""

import logging
from collections.abc import Callable
from typing import Any

from fairseq_aggdec.budget.price import parse_price
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.refusing import (
    acceptance_rule,
    announce,
    refuse_slots,
    refuse_unsupported,
    set_greedy_beam,
)
from fairseq_aggdec.search.acceptance import Acceptance
from fairseq_aggdec.search.drafter import Drafter, EmptyDrafter
from fairseq_aggdec.search.greedy.generator import AlignedGenerator, DraftAndVerifyGenerator

logger = logging.getLogger(__name__)


def loop_generator(request: Request, accept: Acceptance | None = None) -> Any:
    """The generator of a method of the loop; ``accept``: None for that of ``--acceptance``."""
    cfg, rule = request.cfg, request.cfg.acceptance
    set_greedy_beam(request.args, cfg.decoding)
    announce(cfg, request.args)
    kind = AlignedGenerator if request.aligned else DraftAndVerifyGenerator
    shortlist = None
    if cfg.shortlist:
        from fairseq_aggdec.methods.shared.candidates import build_shortlist

        shortlist = build_shortlist(cfg, request.task, request.args)
    drafter = request.task.build_drafter(request)
    parse_price(cfg.call_price)  # refused now, if it is none
    drafter.call_price = cfg.call_price
    if accept is None:
        accept = acceptance_rule(rule, getattr(request.task, "first_number", None))
    if not rule.lossless and not isinstance(drafter, EmptyDrafter):
        logger.info("--acceptance %s is not lossless: outputs may differ from --beam 1", rule)
    options = {"shortlist": shortlist, "drafter": drafter, "accept": accept}
    return request.make(kind, request.computing() | options)


def refuses(request: Request) -> None:
    """Refuses what a method that finds one greedy hypothesis cannot honour."""
    refuse_unsupported(request.args, request.extra, request.cfg.decoding, request.decoding)
    refuse_slots(request.models, request.cfg.decoding)


def loop_reads(settings: Settings) -> set[str]:
    """Options of all methods of the loop, but those about drafts."""
    reads = {"strict", "shortlist", "no_graphs", "low_memory"}
    if settings.int8 != "drafts":
        reads.add("int8")
    return reads | ({"lattice", "lattice_smoothing"} if settings.shortlist else set())


def loop_method(
    name: str,
    draft: Callable[[Request], Drafter],
    reads: Callable[[Settings], set[str]] = lambda settings: set(),
) -> Method:
    """A method that drafts and verifies, by how it drafts and the options that it reads for that."""

    def all_reads(settings: Settings) -> set[str]:
        return loop_reads(settings) | reads(settings)

    return Method(name, all_reads, loop_generator, refuses, drafter=draft)


METHOD = loop_method("greedy", lambda request: EmptyDrafter())
