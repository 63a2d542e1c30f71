"""The modules that the fast forms read: of which classes they are, and what the formula assumes of their attributes."""

import inspect
import math
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import (
    FairseqDropout,
    LayerDropModuleList,
    LearnedPositionalEmbedding,
    MultiheadAttention,
    SinusoidalPositionalEmbedding,
    layer_norm,
)
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from fairseq.utils import get_activation_fn, get_available_activation_fns
from torch import nn

from fairseq_aggdec.engine.plain.walk import Kind, Kinds
from fairseq_aggdec.models.block_heads import BlockHeads
from fairseq_aggdec.models.interleaved_transformer import SlotPositions


def _activations() -> tuple[set[Any], set[Any]]:
    """fairseq's activations; of those that are made anew for every layer the code."""
    names = {*get_available_activation_fns(), "relu_squared"} - {"gelu_fast"}  # gelu_accurate now
    known: list[Any] = [get_activation_fn(name) for name in names]
    known += [torch.relu, torch.tanh, nn.functional.relu, nn.functional.gelu, nn.functional.silu]
    return {f for f in known if inspect.isroutine(f)}, {getattr(f, "__code__", f) for f in known}


ACTIVATIONS, ACTIVATION_CODES = _activations()


def _activation_gap(layer: Any) -> str | None:
    activation = layer.activation_fn
    code = getattr(activation, "__code__", None)
    if not isinstance(activation, nn.Module) and (
        activation in ACTIVATIONS or (code is not None and code in ACTIVATION_CODES)
    ):
        return None
    name = getattr(activation, "__name__", type(activation).__name__)
    return f"an activation that is not fairseq's ({name})"


def _decoder_layer_gap(layer: Any) -> str | None:
    if layer.encoder_attn is None:
        return "layers without encoder attention"
    for name in ("c_attn", "attn_ln", "ffn_layernorm", "w_resid"):
        if getattr(layer, name, None) is not None:
            return f"layers with {name}"
    flags = layer.self_attn.self_attention, layer.encoder_attn.encoder_decoder_attention
    if not all(flags) or layer.self_attn.encoder_decoder_attention or layer.cross_self_attention:
        return "layers whose attentions read something else than their own input and the source"
    if layer.self_attn.num_heads != layer.encoder_attn.num_heads:
        return "layers whose attentions have different numbers of heads"
    return _activation_gap(layer)


def _encoder_layer_gap(layer: Any) -> str | None:
    if getattr(layer, "return_fc", False):
        return "layers that return their feed-forward results"
    return _activation_gap(layer)


def _attention_gap(attention: Any) -> str | None:
    if attention.bias_k is not None or attention.add_zero_attn:
        return "attention with extra key positions (add_bias_kv, add_zero_attn)"
    if getattr(attention, "use_xformers", False):
        return "xformers attention"
    heads, width = attention.num_heads, attention.head_dim
    if heads * width != attention.embed_dim or attention.q_proj.weight.size(0) != heads * width:
        return "attention whose heads do not make up its width"
    if not math.isclose(attention.scaling, width**-0.5):
        return "attention with a scale of its own"
    if attention.training and getattr(attention.dropout_module, "p", 0) > 0:
        return "dropout that is on"
    return None


def _dropout_gap(dropout: Any) -> str | None:
    on = dropout.p > 0 and (dropout.training or dropout.apply_during_inference)
    return "dropout that is on" if on else None


def _decoder_values(decoder: Any) -> str | None:
    if decoder.cross_self_attention or decoder.quant_noise is not None:
        return "cross+self attention or quantisation noise"
    return _scale_gap(decoder)


def _encoder_values(encoder: Any) -> str | None:
    positions = getattr(encoder.embed_positions, "padding_idx", encoder.padding_idx)
    if positions != encoder.padding_idx:
        return "an encoder whose positions know another padding"
    return _scale_gap(encoder)


def _scale_gap(part: Any) -> str | None:
    """An encoder or decoder whose embeddings are not multiplied by a fixed number."""
    if isinstance(part.embed_scale, (int, float)):
        return None
    return f"an embedding scale of type {type(part.embed_scale).__name__}"


def _linear_gap(linear: Any) -> str | None:
    weight, bias = linear.weight, linear.bias
    right = weight.dim() == 2 and weight.is_floating_point()
    if right and (bias is None or bias.shape == weight.shape[:1]):
        return None
    return f"a linear layer with a weight of shape {tuple(weight.shape)}"


def _norm_gap(norm: Any) -> str | None:
    for parameter in (norm.weight, norm.bias):
        if parameter is not None and parameter.shape != tuple(norm.normalized_shape):
            return f"a layer norm with a parameter of shape {tuple(parameter.shape)}"
    return "a layer norm over several dimensions" if len(norm.normalized_shape) != 1 else None


def _embedding_gap(embedding: Any) -> str | None:
    return None if embedding.max_norm is None else "embeddings whose norm is limited"


def _list_gap(layers: Any) -> str | None:
    on = layers.training and getattr(layers, "p", 0) > 0
    return "layers that are left out at random" if on else None


def _heads_gap(heads: Any) -> str | None:
    return "dropout that is on" if heads.training and heads.dropout > 0 else None


LINEAR = (Kind(nn.Linear, parameters=("weight", "bias"), values=_linear_gap),)
NORM: Kinds = (Kind(nn.LayerNorm, parameters=("weight", "bias"), values=_norm_gap),)
if layer_norm.has_fused_layernorm:
    NORM += (Kind(layer_norm.FusedLayerNorm, parameters=("weight", "bias"), values=_norm_gap),)
DROPOUT = (Kind(FairseqDropout, values=_dropout_gap),)
EMBEDDING = (Kind(nn.Embedding, parameters=("weight",), values=_embedding_gap),)
POSITIONS = (
    Kind(SinusoidalPositionalEmbedding),
    Kind(SlotPositions, leaf=False),
    Kind(LearnedPositionalEmbedding, parameters=("weight",), values=_embedding_gap),
)
ATTENTION = (
    Kind(
        MultiheadAttention,
        exact=False,
        leaf=False,
        parts=dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj"), LINEAR)
        | {"dropout_module": DROPOUT},
        values=_attention_gap,
    ),
)
_LAYER: dict[str, Kinds] = {
    "self_attn": ATTENTION,
    "self_attn_layer_norm": NORM,
    "fc1": LINEAR,
    "fc2": LINEAR,
    "final_layer_norm": NORM,
    "dropout_module": DROPOUT,
    "activation_dropout_module": DROPOUT,
}
ENCODER_LAYER = (
    Kind(
        TransformerEncoderLayerBase,
        exact=False,
        leaf=False,
        parts=_LAYER,
        values=_encoder_layer_gap,
    ),
)
DECODER_LAYER = (
    Kind(
        TransformerDecoderLayerBase,
        exact=False,
        leaf=False,
        parts=_LAYER | {"encoder_attn": ATTENTION, "encoder_attn_layer_norm": NORM},
        values=_decoder_layer_gap,
    ),
)
LISTS = (
    Kind(nn.ModuleList, leaf=False, values=_list_gap),
    Kind(LayerDropModuleList, leaf=False, values=_list_gap),
)
_STACK: dict[str, Kinds] = {
    "layernorm_embedding": NORM,
    "dropout_module": DROPOUT,
    "layers": LISTS,
    "layer_norm": NORM,
}
ENCODER = Kind(
    TransformerEncoderBase,
    exact=False,
    leaf=False,
    parts=_STACK | {"embed_positions": POSITIONS},
    optional=("layernorm_embedding", "layer_norm", "embed_positions"),
    values=_encoder_values,
)
DECODER = Kind(
    TransformerDecoderBase,
    exact=False,
    leaf=False,
    parts=_STACK
    | {
        "embed_tokens": EMBEDDING,
        "embed_positions": POSITIONS,
        "project_in_dim": LINEAR,
        "project_out_dim": LINEAR,
        "output_projection": LINEAR,
    },
    optional=(
        *("layernorm_embedding", "layer_norm", "embed_positions"),
        *("project_in_dim", "project_out_dim"),
    ),
    values=_decoder_values,
)
HEADS = (
    Kind(
        BlockHeads,
        exact=False,
        leaf=False,
        parts={"expand": LINEAR, "contract": LINEAR},
        values=_heads_gap,
    ),
)
