"""Tells whether a generator is stock beam search and nothing else: one that a task of fairseq has built, or one of
ours.

A task may put anything in place of fairseq's generator, and anybody may put anything onto a generator later. Only one
whose every method is known can be taken over.
"""

from collections.abc import Iterator
from typing import Any

from fairseq import search
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.sequence_generator import (
    EnsembleModel,
    EnsembleModelWithAlignment,
    SequenceGenerator,
    SequenceGeneratorWithAlignment,
)
from torch import Tensor, nn

from fairseq_aggdec.options.options import ALIGNMENTS
from fairseq_aggdec.startup.known_fairseq import changed

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
# Whether stock takes the lengths of sources from the batch, where </s> counts; 0.12.2 counts tokens other than </s>.
COUNTS_AS_GIVEN = "src_lengths" in SequenceGenerator._generate.__code__.co_consts
_READ: tuple[type[nn.Module], ...] = (
    *(*GENERATORS, *ENSEMBLES, search.Search),
    *(search.BeamSearch, search.LengthConstrainedBeamSearch, NGramRepeatBlock),
)


# Of each class its attributes, and what these are now: asked before every batch.
_ATTRIBUTES = [vars(cls) for cls in _READ]
_KNOWN = [dict(vars(cls)) for cls in _READ]
_NAMES = {cls: {name for name in dir(cls) if callable(getattr(cls, name))} for cls in _READ}
_BEFORE = next(
    (
        f"{cls.__name__} with another {name}()"
        for cls, known in zip(_READ, _KNOWN, strict=True)
        for name, method in known.items()
        if callable(method) and (method.__module__ != cls.__module__ or changed(cls, name))
    ),
    None,
)


def _altered(part: nn.Module) -> str | None:
    """Names a method that was put onto an object in place of the one of stock's class, None if there is none."""
    cls = next(filter(_NAMES.__contains__, type(part).__mro__))
    if _NAMES[cls].isdisjoint(vars(part)):
        return None
    put_on = vars(part).keys() & _NAMES[cls]
    return f"a {cls.__name__} with a {min(put_on)}() put onto it"


def _replaced() -> str | None:
    """Names a method of stock search that somebody has replaced in its class, before or after this was imported."""
    if _ATTRIBUTES == _KNOWN:
        return _BEFORE
    for cls, attributes, before in zip(_READ, _ATTRIBUTES, _KNOWN, strict=True):
        known, now = dict(before), dict(attributes)  # other threads may add to both meanwhile
        for name, method in known.items():
            if callable(method) and now.get(name) is not method:
                return f"{cls.__name__} with another {name}()"
        new = {name: one for name, one in now.items() if name not in known}
        for name in new:
            if not name.startswith("__"):
                return f"{cls.__name__} with a {name} of its own"
        before |= new  # Python adds __slotnames__ and __annotations__ when it is asked for them
    return _BEFORE


def _search_gap(generator: Any) -> str | None:
    strategy = generator.search
    if type(strategy) is search.LengthConstrainedBeamSearch:
        if any(getattr(strategy, name) != value for name, value in MATCHED.items()):
            return "a search with limits of length of its own"
        if type(strategy.beam) is not search.BeamSearch or strategy.eos != generator.eos:
            return "a search of limited length with another end"
        matched = True
    elif type(strategy) is search.BeamSearch:
        matched = False
    else:
        return ASKED_BY.get(type(strategy), f"a search of type {type(strategy).__name__}")
    if matched and not COUNTS_AS_GIVEN:
        return "--match-source-len of a fairseq that counts source tokens without </s>"
    if bool(generator.match_source_len) != matched:
        return "--match-source-len in a task that does not search by it"
    return _altered(strategy)


def _part(module: Any, kind: str, name: str) -> Any:
    """Gets what a module has under a name; its own ``__getattr__`` takes ten times as long."""
    part = vars(module).get(kind, {}).get(name)
    return getattr(module, name, None) if part is None else part


def _model_gaps(generator: Any) -> Iterator[str]:
    types, pad = len(generator.tgt_dict), generator.pad
    for model in generator.model.models:
        decoder = _part(model, "_modules", "decoder")
        if decoder is None or _part(model, "_modules", "encoder") is None:
            yield f"a {type(model).__name__}, which has no encoder and decoder"
            continue
        projection = _part(decoder, "_modules", "output_projection")
        weight = None if projection is None else _part(projection, "_parameters", "weight")
        if isinstance(weight, Tensor) and len(weight) != types:
            name = type(model).__name__
            yield f"a {name} that writes {len(weight)} types, where the dictionary has {types}"
        for part in (decoder, _part(decoder, "_modules", "embed_positions")):
            if getattr(part, "padding_idx", pad) != pad:
                yield f"a {type(model).__name__} whose padding is not that of the dictionary"


def search_gap(generator: Any) -> str | None:
    """Reason why a generator, stock's or one of ours, searches otherwise than stock does; or None."""
    if gap := _replaced() or _altered(generator) or _search_gap(generator):
        return gap
    ensemble = generator.model
    if type(ensemble) not in ENSEMBLES or _altered(ensemble):
        return f"models behind a {type(ensemble).__name__} of its own"
    if generator.lm_model is not None:
        return "--lm-path"
    if generator.token_indices_to_suppress is not None:
        return "tokens_to_suppress"
    if not blocks_as_stock(generator):
        return f"a repeat_ngram_blocker of type {type(generator.repeat_ngram_blocker).__name__}"
    if generator.pad != generator.tgt_dict.pad():
        return "another padding than that of the models"
    if generator.pad in (generator.eos, generator.unk):
        return "padding that is </s> or <unk> as well"
    if generator.beam_size >= generator.vocab_size - 1:
        # Where </s> may come first, stock then goes on with the hypothesis that it ended.
        return "a beam as large as the vocabulary"
    return next(_model_gaps(generator), None)


def blocks_as_stock(generator: Any) -> bool:
    """Tells whether repeated n-grams are banned by nothing but ``--no-repeat-ngram-size``."""
    blocker = generator.repeat_ngram_blocker
    return blocker is None or (type(blocker) is NGramRepeatBlock and _altered(blocker) is None)


def generator_gap(generator: Any) -> str | None:
    """Reason why a task's generator is another than stock beam search."""
    if type(generator) not in GENERATORS:
        return f"a generator of type {type(generator).__name__}"
    if gap := search_gap(generator):
        return gap
    if type(generator) is SequenceGeneratorWithAlignment:
        if vars(generator).get("extract_alignment") not in ALIGNMENTS:
            return "an extract_alignment of its own"
        if generator.left_pad_target:
            return "alignments of outputs that are padded on the left"
    return None
