"""What the fast layers can represent: checks that name the first thing they can not."""

from collections.abc import Sequence
from typing import Any

from fairseq.models.speech_to_text.s2t_transformer import TransformerDecoderScriptable
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LearnedPositionalEmbedding
from torch import nn

from fairseq_aggdec.engine.plain import walk as plain
from fairseq_aggdec.engine.plain.kinds import (
    DECODER,
    DECODER_LAYER,
    ENCODER,
    ENCODER_LAYER,
    HEADS,
    PARTS,
)
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder


def overridden(module: nn.Module, base: type, methods: Sequence[str]) -> str | None:
    """Names the first of ``methods`` that the class of ``module`` defines anew over ``base``, None if none."""
    for method in methods:
        if getattr(type(module), method) is not getattr(base, method):
            return f"{type(module).__name__} has a {method}() of its own"
    return None


def can_read(encoder: Any, length: int) -> bool:
    """Whether sources of ``length`` tokens have positions in ``encoder``; sinusoids have no last one."""
    positions = getattr(encoder, "embed_positions", None)
    return (
        not isinstance(positions, LearnedPositionalEmbedding) or length <= encoder.max_positions()
    )


def encoder_gap(encoder: Any) -> str | None:
    """What keeps :class:`~fairseq_aggdec.engine.encoder.FastEncoder` from representing ``encoder``, None if
    nothing."""
    if not isinstance(encoder, TransformerEncoderBase):
        return f"{type(encoder).__name__} is not a Transformer encoder"
    return _stack_gap(encoder, ENCODER, ENCODER_LAYER)


def decoder_gap(decoder: Any) -> str | None:
    """What keeps a cached decoder from representing ``decoder``, or None when nothing does."""
    if not isinstance(decoder, TransformerDecoderBase):
        return f"{type(decoder).__name__} is not a Transformer decoder"
    methods = ["forward", "extract_features", "extract_features_scriptable"]
    if not isinstance(decoder, HeadedDecoder):
        methods.append("output_layer")
    # The decoder of speech models: what it has of its own leaves out attention, which nothing here reads.
    speech = isinstance(decoder, TransformerDecoderScriptable)
    base = TransformerDecoderScriptable if speech else TransformerDecoderBase
    return overridden(decoder, base, methods) or parts_gap(decoder)


def parts_gap(decoder: TransformerDecoderBase) -> str | None:
    """What keeps fast layers from representing the modules of ``decoder``, None if nothing does."""
    if decoder.adaptive_softmax is not None or decoder.output_projection is None:
        return "adaptive input or softmax"
    if gap := _stack_gap(decoder, DECODER, DECODER_LAYER):
        return gap
    if gap := _shared_state(decoder):
        return gap
    if isinstance(decoder, HeadedDecoder):
        return gap_of(decoder.heads, HEADS, "heads")
    return None


def _shared_state(decoder: Any) -> str | None:
    """Whether two layers keep their keys under one name, as copies of a layer do: stock decoding then mixes these."""
    parts = [part for layer in decoder.layers for part in (layer.self_attn, layer.encoder_attn)]
    names = {part._incremental_state_id for part in parts}
    return None if len(names) == len(parts) else "layers that share their incremental state"


def model_gap(model: Any) -> str | None:
    """What keeps fast layers from representing a model whose probabilities are a softmax of its decoder's output."""
    return plain.probabilities_gap(model) or decoder_gap(model.decoder)


def gap_of(module: Any, kinds: plain.Kinds, name: str, called: bool = True) -> str | None:
    """What keeps a module from being read as one of ``kinds``, or a module in it; None when nothing does.

    Args:
        name: of the module where it stands, for the message.
        called: as for :func:`~fairseq_aggdec.engine.plain.walk.altered`.
    """
    for kind in kinds:
        leaf = kind.parameters is not None
        if type(module) is kind.base or (not leaf and isinstance(module, kind.base)):
            break
    else:
        return f"{name} of type {type(module).__name__}"
    if found := plain.altered(module, kind, called):
        return found
    inner = ((part, getattr(module, part)) for part in kind.parts)
    gaps = (gap_of(own, PARTS[part], part) for part, own in inner if own is not None)
    return next(filter(None, gaps), None) or plain.wrong(module, kind)


def _stack_gap(part: Any, kind: plain.Kind, of_layers: plain.Kind) -> str | None:
    """Of an encoder or decoder, which stock decoding calls past its hooks, and of its layers."""
    if gap := plain.global_gap() or gap_of(part, (kind,), type(part).__name__, called=False):
        return gap
    gaps = (gap_of(layer, (of_layers,), "a layer") for layer in part.layers)
    return next(filter(None, gaps), None)
