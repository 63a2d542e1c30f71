"""``--decoding beam``: what stock beam search gives, faster: it looks ahead along a text."""

import logging
from typing import Any

from fairseq_aggdec.methods.iad import copy_drafter
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.refusing import announce, beam_gap
from fairseq_aggdec.options.stock_generator import generator_gap
from fairseq_aggdec.search.beam.generator import AlignedBeamGenerator, BeamGenerator
from fairseq_aggdec.search.errors import refusal
from fairseq_aggdec.search.generator import UNK_BEHIND_END

logger = logging.getLogger(__name__)


def reads(settings: Settings) -> set[str]:
    """The options that have an effect, and --strict, which is refused."""
    found = {"draft_from", "strict", "no_graphs", "low_memory"}
    if settings.int8 != "drafts":
        found.add("int8")
    return found | (set() if settings.draft_from == "none" else {"draft_file"})


def becomes(request: Request) -> str | None:
    """``stock`` where the search cannot give what stock gives, which is logged; with ``--beam 1`` a method of the loop.

    With ``--score-reference`` stock scores the references, and nothing is said of that.
    """
    generator = request.stock()
    gap = generator_gap(generator)
    gap = gap or beam_gap(request.args, request.extra, generator.model.models, request.known)
    if gap is None and generator.beam_size == request.option("beam", 5) == 1:  # a task may set it
        if not (generator.match_source_len and generator.unk_penalty < 0):
            return "greedy" if request.cfg.draft_from == "none" else "iad"
        gap = UNK_BEHIND_END
    if gap is not None:
        if not request.option("score_reference"):
            logger.info("--decoding beam is left to stock fairseq: %s", gap)
        return "stock"
    return None


def build(request: Request) -> Any:
    """The search over trees of prefixes."""
    cfg = request.cfg
    if cfg.strict:
        raise ValueError(refusal("--strict", "beam", "give --beam 1"))
    announce(cfg, request.args)
    ahead = cfg.draft_from != "none"
    extra = request.computing() | {"ahead": ahead}
    if ahead and (drafter := copy_drafter(request)) is not None:
        extra["texts"] = drafter.texts_of
    return request.make(AlignedBeamGenerator if request.aligned else BeamGenerator, extra)


METHOD = Method("beam", reads, build, becomes=becomes)
