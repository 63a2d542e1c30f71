"""``--decoding interleaved``: builds the generator of Zhang et al. (2020) from fairseq's options."""

from collections.abc import Sequence
from typing import Any

from fairseq.tasks import FairseqTask
from torch import nn

from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.engine.graphs.conditions import tf32_allowed
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings, read_settings
from fairseq_aggdec.methods.options.variants import OF_INTERLEAVED
from fairseq_aggdec.methods.refusing import beam_gap, refuse_own_generator, refuse_prefix_function
from fairseq_aggdec.search.beam.generator import AlignedBeamGenerator, BeamGenerator
from fairseq_aggdec.search.errors import refuse
from fairseq_aggdec.search.interleaved.generator import (
    FIRST,
    REFUSED,
    InterleavedGenerator,
    common_geometry,
)


def reads(settings: Settings) -> set[str]:
    """The options that have an effect. A model of one word per step is read by beam search, which may look ahead."""
    ahead = {"draft_from"} if settings.draft_from == "none" else set()
    return {*OF_INTERLEAVED, "no_graphs", "low_memory"} | ahead


def build_interleaved_generator(
    cfg: Any,
    task: Any,
    models: Sequence[nn.Module],
    args: Any,
    extra: dict[str, Any] | None = None,
    option: str = "--path",
) -> InterleavedGenerator | BeamGenerator:
    """The generator of ``--decoding interleaved``; where that is stock beam search, the one of ``--decoding beam``.

    Args:
        cfg: decoding options.
        task: has the counters.
        models: of one geometry.
        args: fairseq's generation options, complete or (``--eval-bleu-args``) a few of them.
        extra: what ``fairseq-generate`` hands to the generator beside them.
        option: that named the models, for messages.

    Raises:
        ValueError: an option or a model that the search cannot honour, in one sentence.
    """
    cfg, extra = read_settings(cfg), dict(extra or {})
    refuse("interleaved", REFUSED, args, extra)
    common_geometry(models, option)
    if cfg.dedup < 0:
        raise ValueError(f"{cfg.told('dedup')}: it must be at least 0")
    alignment = getattr(args, "print_alignment", None)
    extra |= {
        "counters": task.counters,
        "precision": Precision(
            pack=not cfg.low_memory, graphs=not cfg.no_graphs, tf32=tf32_allowed()
        ),
        "retain_history": bool(getattr(args, "retain_iter_history", False)),
    }
    generator_class: Any = InterleavedGenerator
    if _is_stock_search(cfg, models, args):
        generator_class = BeamGenerator
        extra["ahead"] = cfg.draft_from != "none"
        if alignment:
            generator_class = AlignedBeamGenerator
            extra["print_alignment"] = alignment
    else:
        extra |= {
            "end_condition": cfg.end_condition,
            "any_ending": cfg.stop_rule == "any",
            "gnmt": cfg.length_penalty == "gnmt",
            "dedup": cfg.dedup,
            "print_alignment": alignment,
        }
    return FairseqTask.build_generator(task, models, args, generator_class, extra)


def _is_stock_search(cfg: Settings, models: Sequence[nn.Module], args: Any) -> bool:
    """Whether Algorithm 1 is stock beam search here: one word per step, and nothing that stock has not.

    With ``--match-source-len`` it is not: every sentence has its own maximum length here. ``--retain-iter-history``
    asks for the steps of each hypothesis, which a search that evaluates prefixes ahead does not have.
    """
    return (
        common_geometry(models) == Geometry()
        and cfg.end_condition == FIRST
        and cfg.stop_rule == "stock"
        and cfg.length_penalty == "fairseq"
        and not cfg.dedup
        and not getattr(args, "match_source_len", False)
        and not getattr(args, "retain_iter_history", False)
        and beam_gap(args, {}, models) is None
    )


def _refuses(request: Request) -> None:
    refuse_prefix_function(request.prefix_allowed_tokens_fn, "interleaved")
    refuse_own_generator(request.task, "interleaved")


def _build(request: Request) -> InterleavedGenerator | BeamGenerator:
    return build_interleaved_generator(
        request.cfg, request.task, request.models, request.args, request.extra
    )


METHOD = Method("interleaved", reads, _build, _refuses)
