"""Checks of what the fast layers can represent; they name the first thing they can not."""

from collections.abc import Iterator, Sequence
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
    PROJECTIONS,
)
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder

Shapes = dict[str, tuple[int, ...]]


def overridden(module: nn.Module, base: type, methods: Sequence[str]) -> str | None:
    """Names the first of ``methods`` that the class of ``module`` defines anew over ``base``, None if none."""
    for method in methods:
        if getattr(type(module), method) is not getattr(base, method):
            return f"{type(module).__name__} has a {method}() of its own"
    return None


def can_read(encoder: Any, length: int) -> bool:
    """Tells whether sources of ``length`` tokens have positions in ``encoder``; sinusoids have no last one."""
    positions = getattr(encoder, "embed_positions", None)
    return (
        not isinstance(positions, LearnedPositionalEmbedding) or length <= encoder.max_positions()
    )


def encoder_gap(encoder: Any) -> str | None:
    """Reason why :class:`~fairseq_aggdec.engine.encoder.FastEncoder` cannot represent ``encoder``, None if
    nothing."""
    if not isinstance(encoder, TransformerEncoderBase):
        return f"{type(encoder).__name__} is not a Transformer encoder"
    return _stack_gap(encoder, ENCODER, ENCODER_LAYER)


def decoder_gap(decoder: Any) -> str | None:
    """Reason why a cached decoder cannot represent ``decoder``, or None."""
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
    """Reason why fast layers cannot represent the modules of ``decoder``, or None."""
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
    """Tells whether two layers keep their keys under one name, as copies of a layer do: stock decoding then mixes
    these."""
    parts = [part for layer in decoder.layers for part in (layer.self_attn, layer.encoder_attn)]
    names = {part._incremental_state_id for part in parts}
    return None if len(names) == len(parts) else "layers that share their incremental state"


def model_gap(model: Any) -> str | None:
    """Reason why fast layers cannot represent a model whose probabilities are a softmax of its decoder's output."""
    return plain.probabilities_gap(model) or decoder_gap(model.decoder)


def gap_of(module: Any, kinds: plain.Kinds, name: str, called: bool = True) -> str | None:
    """Reason why a module, or one in it, cannot be read as one of ``kinds``; or None.

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
    if gap := plain.altered(module, kind, called):
        return gap
    inner = ((part, getattr(module, part)) for part in kind.parts)
    gaps = (gap_of(child, PARTS[part], part) for part, child in inner if child is not None)
    return next(filter(None, gaps), None) or plain.wrong(module, kind)


def _stack_gap(part: Any, kind: plain.Kind, of_layers: plain.Kind) -> str | None:
    """Reason against an encoder or decoder, which stock decoding calls past its hooks, and of its layers."""
    if gap := plain.global_gap() or gap_of(part, (kind,), type(part).__name__, called=False):
        return gap
    gaps = (gap_of(layer, (of_layers,), "a layer") for layer in part.layers)
    return next(filter(None, gaps), None) or _misfit(part)


def _misfit(part: Any) -> str | None:
    """The first weight of an encoder or decoder that does not fit those beside it.

    The compiled library reads weights without a look at their shapes and precision. The modules themselves fail, as in
    stock.
    """
    kinds = {f"{weight.dtype} on {weight.device}" for weight in part.parameters()}
    if len(kinds) > 1:
        return f"weights in {' and in '.join(sorted(kinds))}"
    if len(part.layers) == 0:
        return None
    if getattr(getattr(part.embed_tokens, "weight", None), "ndim", 0) != 2:
        return f"embed_tokens of type {type(part.embed_tokens).__name__}"
    for owner, shapes in _fitting(part):
        for name, fitting in shapes.items():
            module = getattr(owner, name, None)
            if module is not None:
                norm = getattr(module, "normalized_shape", None)
                shape = tuple(module.weight.shape if norm is None else norm)
                if shape != fitting:
                    return f"{name} of shape {shape} where {fitting} fits"
    return None


def _fitting(part: Any) -> Iterator[tuple[Any, Shapes]]:
    """The modules of a plain encoder or decoder that have parts with weights; the shapes that these need, by name."""
    first = part.layers[0]
    width = first.self_attn.embed_dim
    into, out = (getattr(part, name, None) for name in ("project_in_dim", "project_out_dim"))
    types, read = part.embed_tokens.weight.shape
    shapes: Shapes = {}
    if into is None:
        read = width
    else:
        shapes["project_in_dim"] = width, read
    if (output := getattr(part, "output_projection", None)) is not None:
        embedded = width if out is None else out.weight.size(0)
        shapes["output_projection"] = output.weight.size(0), embedded
        shapes["project_out_dim"] = embedded, width
        types = max(types, output.weight.size(0))  # what is chosen is embedded next
    shapes["embed_tokens"] = types, read
    yield part, shapes | dict.fromkeys(("layer_norm", "layernorm_embedding"), (width,))
    for layer in part.layers:
        hidden, cross = layer.fc1.weight.size(0), getattr(layer, "encoder_attn", None)
        norms = (name for name in layer._modules if name.endswith("layer_norm"))
        products: Shapes = {"fc1": (hidden, width), "fc2": (width, hidden)}
        yield layer, products | dict.fromkeys(norms, (width,))
        square: Shapes = dict.fromkeys(PROJECTIONS, (width, width))
        yield layer.self_attn, square
        if cross is not None:
            yield cross, square | dict.fromkeys(("k_proj", "v_proj"), (width, source_width(part)))


def source_width(decoder: Any) -> int:
    """Tells how many numbers of each source token the layers of a plain decoder read."""
    return int(decoder.layers[0].encoder_attn.k_proj.weight.size(1))
