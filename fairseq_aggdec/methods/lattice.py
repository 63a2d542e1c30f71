"""``--decoding lattice``: opens the tables and builds the generator of Deng and Rush (2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq.tasks import FairseqTask
from torch import nn

from fairseq_aggdec.engine.graphs.conditions import tf32_allowed
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.lattice.generator import REFUSED, LatticeGenerator
from fairseq_aggdec.methods.method import Method, Request
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.methods.options.variants import OF_LATTICE
from fairseq_aggdec.methods.refusing import refuse_own_generator, refuse_prefix_function
from fairseq_aggdec.methods.shared.candidates import open_candidates
from fairseq_aggdec.models.lattice_transformer import MarkovDecoder
from fairseq_aggdec.search.errors import refuse


def check_sizes(cfg: Settings) -> None:
    """Raises ``ValueError`` with one sentence for a size or a probability that no lattice can have."""
    candidates, window = cfg.lattice_candidates, cfg.lattice_length_window
    if window < 0:
        raise ValueError(f"{cfg.told('lattice_length_window')}: it must be at least 0")
    if candidates < 1:
        raise ValueError(f"{cfg.told('lattice_candidates')}: it must be at least 1")
    if window and candidates < 3:
        raise ValueError(
            f"{cfg.told('lattice_candidates')} leaves no room for a word beside </s> and padding: "
            "take 3 or more, or --variant lattice-length-window=0"
        )
    if not 0 <= cfg.lattice_least_probability <= 1:
        raise ValueError(f"{cfg.told('lattice_least_probability')}: it must be 0 to 1")


def build_lattice_generator(
    cfg: Any,
    task: Any,
    models: Sequence[nn.Module],
    args: Any,
    extra: dict[str, Any],
    option: str = "--path",
) -> LatticeGenerator:
    """The generator of ``--decoding lattice``.

    Args:
        cfg: decoding options.
        task: has dictionaries and counters.
        models: of ``--arch lattice_transformer``.
        args: fairseq's generation options, complete or (``--eval-bleu-args``) a few of them.
        extra: what ``fairseq-generate`` hands to the generator beside them.
        option: that named the models, for messages.

    Raises:
        ValueError: an option or a model that does not fit, in one sentence.
    """
    refuse("lattice", REFUSED, args, extra)
    check_sizes(cfg)
    for model in models:
        decoder: Any = model.decoder
        if not isinstance(decoder, MarkovDecoder):
            raise ValueError(
                f"a lattice needs a model of --arch lattice_transformer; that of {option} has a "
                f"{type(decoder).__name__}"
            )
    extra = extra | {
        "candidate_model": open_candidates(cfg, task),
        "counters": task.counters,
        "candidates": cfg.lattice_candidates,
        "least": cfg.lattice_least_probability,
        "length_window": cfg.lattice_length_window,
        "smoothing": cfg.lattice_smoothing,
        "normalise": cfg.lattice_normalise,
        "form": cfg.lattice_search,
        "count": getattr(args, "nbest", 1),
        "precision": Precision(pack=not cfg.low_memory, tf32=tf32_allowed()),
    }
    return FairseqTask.build_generator(task, models, args, LatticeGenerator, extra)


def _refuses(request: Request) -> None:
    refuse_prefix_function(request.prefix_allowed_tokens_fn, "lattice")
    refuse_own_generator(request.task, "lattice")


def _build(request: Request) -> LatticeGenerator:
    return build_lattice_generator(
        request.cfg, request.task, request.models, request.args, request.extra
    )


METHOD = Method("lattice", lambda settings: {*OF_LATTICE, "low_memory"}, _build, _refuses)
