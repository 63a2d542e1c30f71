"""``--decoding interleaved``: builds the generator of Zhang et al. (2020) from fairseq's options."""

import logging
from typing import Any

from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.engine.graphs.conditions import tf32_allowed
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import OF_INTERLEAVED, Settings
from fairseq_aggdec.methods.refusing import announce, other_searches, refuse_own_generator
from fairseq_aggdec.models.interleaved_transformer import InterleavedDecoder
from fairseq_aggdec.search.beam.generator import AlignedBeamGenerator, BeamGenerator
from fairseq_aggdec.search.engines import of_models
from fairseq_aggdec.search.errors import refuse
from fairseq_aggdec.search.interleaved.generator import (
    FIRST,
    REFUSED,
    InterleavedGenerator,
    common_geometry,
)

logger = logging.getLogger(__name__)


def reads(settings: Settings) -> set[str]:
    """The options that have an effect. A model of one word per step is read by beam search, which may look ahead."""
    ahead = {"draft_from"} if settings.draft_from == "none" else set()
    int8 = {"int8"} if settings.int8 != "drafts" else set()
    return {*OF_INTERLEAVED, "no_graphs", "low_memory"} | ahead | int8


def refuses(request: Request) -> None:
    refuse("interleaved", REFUSED, request.args, request.extra)
    refuse_own_generator(request.task, "interleaved")


def build(request: Request) -> InterleavedGenerator | BeamGenerator:
    """The generator; where Algorithm 1 is stock beam search, the one of ``--decoding beam``."""
    cfg, stock = request.cfg, _is_stock_search(request)
    several = any(isinstance(model.decoder, InterleavedDecoder) for model in request.models)
    if not several and not request.quiet:
        logger.warning(
            "--decoding interleaved: the model of --path writes one word per step, so this is beam search: take a "
            "model of --arch interleaved_transformer, or --decoding beam"
        )
    if cfg.dedup < 0:
        raise ValueError(f"{cfg.as_given('dedup')}: it must be at least 0")
    announce(cfg, request.args)
    how = Precision(
        pack=not cfg.low_memory,
        int8=cfg.int8_all,
        graphs=not cfg.no_graphs,
        tf32=tf32_allowed(),
    )
    options = request.computing(how)
    if aligned := request.option("print_alignment"):
        options["print_alignment"] = aligned
    kind: Any = InterleavedGenerator
    if stock:
        kind = AlignedBeamGenerator if aligned else BeamGenerator
        options["ahead"] = cfg.draft_from != "none"
    else:
        options |= {
            "end_condition": cfg.end_condition,
            "any_ending": cfg.stop_rule == "any",
            "gnmt": cfg.length_penalty == "gnmt",
            "dedup": cfg.dedup,
        }
    generator: InterleavedGenerator | BeamGenerator = request.make_alone(kind, options)
    return generator


def _is_stock_search(request: Request) -> bool:
    """Tells whether Algorithm 1 is stock beam search here: one word per step, and nothing that stock has not.

    With ``--match-source-len`` it is not: every sentence has its own maximum length here. ``--retain-iter-history``
    asks for the steps of each hypothesis, which a search that evaluates prefixes ahead does not have.
    """
    cfg = request.cfg
    return (
        common_geometry(request.models) == Geometry()
        and cfg.end_condition == FIRST
        and cfg.stop_rule == "stock"
        and cfg.length_penalty == "fairseq"
        and not cfg.dedup
        and not request.option("match_source_len")
        and not request.option("retain_iter_history")
        and next(other_searches(request.args, {}), None) is None
        and of_models(request.models) is None
    )


METHOD = Method("interleaved", reads, build, refuses)
