"""``--decoding beam``: what stock beam search gives, faster: it looks ahead along a text."""

from typing import Any

from fairseq_aggdec.budget.price import parse_price
from fairseq_aggdec.methods.iad import copy_drafter
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.refusing import announce, other_searches
from fairseq_aggdec.search.beam.generator import AlignedBeamGenerator, BeamGenerator
from fairseq_aggdec.search.engines import of_stock_generator
from fairseq_aggdec.search.errors import refusal


def reads(settings: Settings) -> set[str]:
    """The options that have an effect, and --strict, which is refused."""
    options = {"draft_from", "call_price", "strict", "no_graphs", "low_memory"}
    if settings.int8 != "drafts":
        options.add("int8")
    return options | (set() if settings.draft_from == "none" else {"draft_file"})


def becomes(request: Request) -> str | None:
    """``stock`` where the search cannot give what stock gives; with ``--beam 1`` a method of the loop."""
    generator = request.stock()
    greedy = (
        getattr(generator, "beam_size", 0) == request.option("beam", 5) == 1
    )  # a task may set it
    searches = other_searches(request.args, request.extra)
    gap = of_stock_generator(generator, searches, greedy, request.known)
    if gap is not None:
        request.leave(gap)
        return "stock"
    if greedy:
        return "greedy" if request.cfg.draft_from == "none" else "iad"
    return None


def build(request: Request) -> Any:
    """The search over trees of prefixes."""
    cfg = request.cfg
    if cfg.strict:
        raise ValueError(refusal("--strict", "beam", "give --beam 1"))
    announce(cfg, request.args)
    ahead = cfg.draft_from != "none"
    parse_price(cfg.call_price)  # refused now, if it is none
    extra = request.computing() | {"ahead": ahead, "call_price": cfg.call_price}
    if ahead and (drafter := copy_drafter(request)) is not None:
        extra["texts"] = drafter.texts_of
    return request.make(AlignedBeamGenerator if request.aligned else BeamGenerator, extra)


METHOD = Method("beam", reads, build, becomes=becomes)
