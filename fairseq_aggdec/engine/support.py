"""What the fast layers can represent: checks that name the first thing they can not."""

from collections.abc import Sequence
from typing import Any

from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import LearnedPositionalEmbedding, MultiheadAttention
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import nn

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


def attention_gap(attention: Any) -> str | None:
    """What keeps a fairseq attention module from being computed as plain softmax(QK/sqrt(d))V, None if nothing."""
    if not isinstance(attention, MultiheadAttention):
        return f"attention of type {type(attention).__name__}"
    if gap := overridden(attention, MultiheadAttention, ("forward",)):
        return gap
    if attention.bias_k is not None or attention.add_zero_attn:
        return "attention with extra key positions (add_bias_kv, add_zero_attn)"
    if getattr(attention, "use_xformers", False):
        return "xformers attention"
    for projection in (
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.out_proj,
    ):
        if type(projection) is not nn.Linear:
            return f"attention projections of type {type(projection).__name__}"
    return None


def decoder_gap(decoder: Any) -> str | None:
    """What keeps a cached decoder from representing ``decoder``, or None when nothing does."""
    if not isinstance(decoder, TransformerDecoderBase):
        return f"{type(decoder).__name__} is not a Transformer decoder"
    methods = ["forward", "extract_features", "extract_features_scriptable"]
    if not isinstance(decoder, HeadedDecoder):
        methods.append("output_layer")
    return overridden(decoder, TransformerDecoderBase, methods) or parts_gap(decoder)


def parts_gap(decoder: TransformerDecoderBase) -> str | None:
    """The same about the modules that ``decoder`` consists of, whatever it does with them."""
    if decoder.adaptive_softmax is not None or type(decoder.embed_tokens) is not nn.Embedding:
        return "adaptive input or softmax"
    if type(decoder.output_projection) is not nn.Linear:
        return f"an output projection of type {type(decoder.output_projection).__name__}"
    if decoder.cross_self_attention or decoder.quant_noise is not None:
        return "cross+self attention or quantisation noise"
    for layer in decoder.layers:
        if gap := _layer_gap(layer):
            return gap
    return None


def _layer_gap(layer: Any) -> str | None:
    if not isinstance(layer, TransformerDecoderLayerBase):
        return f"layers of type {type(layer).__name__}"
    if gap := overridden(layer, TransformerDecoderLayerBase, ("forward", "residual_connection")):
        return gap
    if layer.encoder_attn is None:
        return "layers without encoder attention"
    for name in ("c_attn", "attn_ln", "ffn_layernorm", "w_resid"):
        if getattr(layer, name, None) is not None:
            return f"layers with {name}"
    return attention_gap(layer.self_attn) or attention_gap(layer.encoder_attn)
