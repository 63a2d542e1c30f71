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

from fairseq_aggdec.engine.plain.walk import Kind, Kinds, Wrong
from fairseq_aggdec.models.block_heads import BlockHeads
from fairseq_aggdec.models.interleaved_transformer import SlotPositions

DROPS = "dropout that is on"


def _activations() -> tuple[set[Any], set[Any]]:
    """fairseq's activations; of those that are made anew for every layer the code."""
    names = {*get_available_activation_fns(), "relu_squared"} - {"gelu_fast"}  # gelu_accurate now
    known: list[Any] = [get_activation_fn(name) for name in names]
    known += [torch.relu, torch.tanh, nn.functional.relu, nn.functional.gelu, nn.functional.silu]
    return {f for f in known if inspect.isroutine(f)}, {getattr(f, "__code__", f) for f in known}


ACTIVATIONS, ACTIVATION_CODES = _activations()


def _activation(layer: Any) -> Wrong:
    activation = layer.activation_fn
    code = getattr(activation, "__code__", None)
    known = not isinstance(activation, nn.Module) and (
        activation in ACTIVATIONS or (code is not None and code in ACTIVATION_CODES)
    )
    name = getattr(activation, "__name__", type(activation).__name__)
    return {f"an activation that is not fairseq's ({name})": not known}


def _decoder_layer(layer: Any) -> Wrong:
    self_attn, cross = layer.self_attn, layer.encoder_attn
    if cross is None:
        return {"no encoder attention": True}
    extra = ("c_attn", "attn_ln", "ffn_layernorm", "w_resid")
    wrong = {name: getattr(layer, name, None) is not None for name in extra}
    reads_its_own = self_attn.self_attention and not self_attn.encoder_decoder_attention
    reads_others = not cross.encoder_decoder_attention or layer.cross_self_attention
    wrong["attentions that read something else"] = reads_others or not reads_its_own
    wrong["attentions of different numbers of heads"] = self_attn.num_heads != cross.num_heads
    return wrong | _activation(layer)


def _encoder_layer(layer: Any) -> Wrong:
    returns = getattr(layer, "return_fc", False)
    return {"feed-forward results that it returns": returns} | _activation(layer)


def _attention(attention: Any) -> Wrong:
    heads, width = attention.num_heads, attention.head_dim
    outputs = attention.q_proj.weight.size(0)
    drops = attention.training and getattr(attention.dropout_module, "p", 0) > 0
    return {
        "extra key positions": attention.bias_k is not None or attention.add_zero_attn,
        "xformers": getattr(attention, "use_xformers", False),
        "heads that do not make up its width": not heads * width == attention.embed_dim == outputs,
        "a scale of its own": not math.isclose(attention.scaling, width**-0.5),
        DROPS: drops,
    }


def _dropout(dropout: Any) -> Wrong:
    return {DROPS: dropout.p > 0 and (dropout.training or dropout.apply_during_inference)}


def _decoder(decoder: Any) -> Wrong:
    return {
        "cross+self attention": decoder.cross_self_attention,
        "quantisation noise": decoder.quant_noise is not None,
    } | _scale(decoder)


def _encoder(encoder: Any) -> Wrong:
    padding = getattr(encoder.embed_positions, "padding_idx", encoder.padding_idx)
    return {"positions that know another padding": padding != encoder.padding_idx} | _scale(encoder)


def _scale(part: Any) -> Wrong:
    return {"an embedding scale that is no number": not isinstance(part.embed_scale, int | float)}


def _linear(linear: Any) -> Wrong:
    weight, bias = linear.weight, linear.bias
    right = weight.dim() == 2 and weight.is_floating_point()
    right = right and (bias is None or bias.shape == weight.shape[:1])
    return {f"a weight of shape {tuple(weight.shape)}": not right}


def _norm(norm: Any) -> Wrong:
    shape = tuple(norm.normalized_shape)
    parameters = [p for p in (norm.weight, norm.bias) if p is not None]
    fit = len(shape) == 1 and all(parameter.shape == shape for parameter in parameters)
    return {"parameters of another shape than one dimension's": not fit}


def _embedding(embedding: Any) -> Wrong:
    return {"a limit of its norm": embedding.max_norm is not None}


def _list(layers: Any) -> Wrong:
    drops = layers.training and getattr(layers, "p", 0) > 0
    return {"layers that are left out at random": drops}


def _heads(heads: Any) -> Wrong:
    return {DROPS: heads.training and heads.dropout > 0}


BOTH, WEIGHT = ("weight", "bias"), ("weight",)
LINEAR = (Kind(nn.Linear, BOTH, wrong=_linear),)
NORM: Kinds = (Kind(nn.LayerNorm, BOTH, wrong=_norm),)
if layer_norm.has_fused_layernorm:
    NORM += (Kind(layer_norm.FusedLayerNorm, BOTH, wrong=_norm),)
DROPOUT = (Kind(FairseqDropout, (), wrong=_dropout),)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
ATTENTION = (Kind(MultiheadAttention, parts=(*PROJECTIONS, "dropout_module"), wrong=_attention),)
_LAYER = (
    *("self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"),
    *("dropout_module", "activation_dropout_module"),
)
ENCODER_LAYER = Kind(TransformerEncoderLayerBase, parts=_LAYER, wrong=_encoder_layer)
_CROSS = ("encoder_attn", "encoder_attn_layer_norm")
DECODER_LAYER = Kind(TransformerDecoderLayerBase, parts=(*_LAYER, *_CROSS), wrong=_decoder_layer)
_STACK = ("layernorm_embedding", "dropout_module", "layers", "layer_norm", "embed_positions")
ENCODER = Kind(TransformerEncoderBase, parts=_STACK, wrong=_encoder)
_ENDS = ("embed_tokens", "project_in_dim", "project_out_dim", "output_projection")
DECODER = Kind(TransformerDecoderBase, parts=(*_STACK, *_ENDS), wrong=_decoder)
HEADS = (Kind(BlockHeads, parts=("expand", "contract"), wrong=_heads),)

# What the parts of modules are, by name.
PARTS: dict[str, Kinds] = {
    **dict.fromkeys((*PROJECTIONS, "fc1", "fc2", "expand", "contract", *_ENDS[1:]), LINEAR),
    **dict.fromkeys(("self_attn", "encoder_attn"), ATTENTION),
    **dict.fromkeys(("dropout_module", "activation_dropout_module"), DROPOUT),
    **dict.fromkeys(("layer_norm", "layernorm_embedding", "final_layer_norm"), NORM),
    **dict.fromkeys(("self_attn_layer_norm", "encoder_attn_layer_norm"), NORM),
    "embed_tokens": (Kind(nn.Embedding, WEIGHT, wrong=_embedding),),
    "embed_positions": (
        Kind(SinusoidalPositionalEmbedding, ()),
        Kind(SlotPositions),
        Kind(LearnedPositionalEmbedding, WEIGHT, wrong=_embedding),
    ),
    "layers": (
        Kind(nn.ModuleList, wrong=_list),
        Kind(LayerDropModuleList, wrong=_list),
    ),
}
