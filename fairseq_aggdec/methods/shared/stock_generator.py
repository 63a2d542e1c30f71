"""What a task of fairseq has built: whether it is stock beam search and nothing else.

A task may put anything in place of fairseq's generator. Only one whose every method is known can be taken over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairseq import search
from fairseq.sequence_generator import (
    EnsembleModel,
    EnsembleModelWithAlignment,
    SequenceGenerator,
    SequenceGeneratorWithAlignment,
)
from torch import Tensor, nn

GENERATORS = SequenceGenerator, SequenceGeneratorWithAlignment
ENSEMBLES = EnsembleModel, EnsembleModelWithAlignment
# How the other searches of fairseq are asked for.
ASKED_BY = {
    search.Sampling: "--sampling",
    search.DiverseBeamSearch: "--diverse-beam-groups",
    search.DiverseSiblingsSearch: "--diversity-rate",
    search.LexicallyConstrainedBeamSearch: "--constraints",
    search.PrefixConstrainedBeamSearch: "prefix_allowed_tokens_fn",
}
# The limits of --match-source-len, as FairseqTask gives them.
MATCHED = {"min_len_a": 1, "min_len_b": 0, "max_len_a": 1, "max_len_b": 0}
_READ: tuple[type[nn.Module], ...] = (
    *(*GENERATORS, *ENSEMBLES, search.Search),
    *(search.BeamSearch, search.LengthConstrainedBeamSearch),
)
_METHODS = {
    (cls, name): method for cls in _READ for name, method in vars(cls).items() if callable(method)
}


def _altered(part: nn.Module) -> str | None:
    """Names a method that was put onto an object in place of its class's, None if there is none."""
    cls = type(part)
    own = (name for name in vars(part) if callable(getattr(cls, name, None)))
    return next((f"a {cls.__name__} with a {name}() put onto it" for name in own), None)


def _replaced() -> str | None:
    """Names a method of stock search that somebody has replaced in its class, before or after this was imported."""
    for (cls, name), method in _METHODS.items():
        if vars(cls).get(name) is not method or method.__module__ != cls.__module__:
            return f"{cls.__name__} with another {name}()"
    return None


def _search_gap(generator: Any) -> str | None:
    found = generator.search
    if type(found) is search.LengthConstrainedBeamSearch:
        if any(getattr(found, name) != value for name, value in MATCHED.items()):
            return "a search with limits of length of its own"
        if type(found.beam) is not search.BeamSearch or found.eos != generator.eos:
            return "a search of limited length with another end"
        matched = True
    elif type(found) is search.BeamSearch:
        matched = False
    else:
        return ASKED_BY.get(type(found), f"a search of type {type(found).__name__}")
    if bool(generator.match_source_len) != matched:
        return "--match-source-len in a task that does not search by it"
    return _altered(found)


def _model_gaps(generator: Any) -> Iterator[str]:
    types = len(generator.tgt_dict)
    for model in generator.model.models:
        name = type(model).__name__
        if not (hasattr(model, "encoder") and hasattr(model, "decoder")):
            yield f"a {name}, which has no encoder and decoder"
            continue
        weight = getattr(getattr(model.decoder, "output_projection", None), "weight", None)
        if isinstance(weight, Tensor) and len(weight) != types:
            yield f"a {name} that writes {len(weight)} types, where the dictionary has {types}"


def generator_gap(generator: Any, aligned: bool = False) -> str | None:
    """What makes a task's generator another than stock beam search, None where nothing does.

    Args:
        aligned: ``--print-alignment`` is given.
    """
    if type(generator) not in GENERATORS:
        return f"a generator of type {type(generator).__name__}"
    if gap := _replaced() or _altered(generator) or _search_gap(generator):
        return gap
    if type(generator.model) not in ENSEMBLES or _altered(generator.model):
        return f"models behind a {type(generator.model).__name__} of its own"
    if generator.lm_model is not None:
        return "--lm-path"
    if generator.token_indices_to_suppress is not None:
        return "tokens_to_suppress"
    if aligned != (type(generator) is SequenceGeneratorWithAlignment):
        return "--print-alignment in a task that does not read it"
    return next(_model_gaps(generator), None)
