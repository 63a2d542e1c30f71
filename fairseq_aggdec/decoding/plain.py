"""Which modules are exactly what their classes are, so that their weights may be read past their ``forward``.

The fast forms read parameters and attributes and call no ``forward``. So every module that they read must be plain: of
the very class that is known here, without hooks, without a method patched onto it, without a parametrisation, with the
parameters and attributes that the formula assumes. :func:`gap` names the first thing that is not.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.models import FairseqDecoder
from fairseq.models.fairseq_model import BaseFairseqModel
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerDecoderBase,
    TransformerEncoder,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.modules import (
    FairseqDropout,
    LayerDropModuleList,
    LearnedPositionalEmbedding,
    MultiheadAttention,
    SinusoidalPositionalEmbedding,
    layer_norm,
)
from fairseq.modules.checkpoint_activations import _checkpointed_forward
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayer,
    TransformerDecoderLayerBase,
    TransformerEncoderLayer,
    TransformerEncoderLayerBase,
)
from fairseq.utils import get_activation_fn, get_available_activation_fns
from torch import nn
from torch.nn.modules import module as torch_module

from fairseq_aggdec.models.interleaved_transformer import SlotPositions

# Methods that say nothing of what is computed when a batch is decoded; so do all with these beginnings.
HARMLESS = frozenset(
    (
        *("train", "eval", "to", "half", "float", "requires_grad_", "extra_repr"),
        *("max_positions", "max_decoder_positions", "get_targets", "set_beam_size"),
        *("add_args", "hub_models", "from_pretrained", "set_num_updates", "set_epoch"),
        *("load_state_dict", "state_dict", "reset_parameters", "make_generation_fast_"),
        *("upgrade_state_dict", "upgrade_state_dict_named"),
    )
)
HARMLESS_BEGINNINGS = ("build_", "prepare_for_", "_load_", "_save_", "_abc_")
TELLING = frozenset(
    ("__call__", "__getattr__", "__getattribute__")
)  # of all names with underscores around
# Where the classes come from whose own methods are known here.
OURS = "fairseq_aggdec."
# The methods that turn a decoder's output into probabilities as a softmax does.
PROBABILITIES = ("get_normalized_probs", "get_normalized_probs_scriptable")


@dataclass(frozen=True)
class Kind:
    """What a plain module is.

    Args:
        base: its class. A subclass counts where it defines no method of ``base`` anew, or is known here.
        leaf: no subclass counts, and there is nothing in it but ``parameters``.
        parameters: of a leaf; those that are None count as there.
        parts: modules in it that are read, by name.
        optional: parts that may be None.
        values: names an attribute that the formula does not know, None if there is none.
    """

    base: type[nn.Module]
    leaf: bool = True
    parameters: tuple[str, ...] = ()
    parts: Mapping[str, "Kinds"] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    values: Callable[[Any], str | None] = lambda module: None


Kinds = tuple[Kind, ...]


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
    Kind(TransformerEncoderLayerBase, leaf=False, parts=_LAYER, values=_encoder_layer_gap),
)
DECODER_LAYER = (
    Kind(
        TransformerDecoderLayerBase,
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
    leaf=False,
    parts=_STACK | {"embed_positions": POSITIONS},
    optional=("layernorm_embedding", "layer_norm", "embed_positions"),
    values=_scale_gap,
)
DECODER = Kind(
    TransformerDecoderBase,
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
# Classes of fairseq whose own methods are known here.
KNOWN: tuple[type, ...] = (
    *(TransformerDecoder, TransformerDecoderBase, TransformerEncoder, TransformerEncoderBase),
    *(TransformerDecoderLayer, TransformerDecoderLayerBase),
    *(TransformerEncoderLayer, TransformerEncoderLayerBase),
    *(MultiheadAttention, nn.ModuleList, LayerDropModuleList),
)
READ = (*KNOWN, nn.Linear, nn.LayerNorm, nn.Embedding, FairseqDropout, nn.Module, FairseqDecoder)
READ += (SinusoidalPositionalEmbedding, LearnedPositionalEmbedding, BaseFairseqModel)
READ += (TransformerModelBase,)
# The functions of these classes as they were imported: whoever replaces one alters every module of the class.
FUNCTIONS = {
    (cls, name): value
    for cls in READ
    for name, value in vars(cls).items()
    if inspect.isfunction(value)
}
_PLAIN_PROBABILITIES = {
    FUNCTIONS[cls, name]
    for cls in (BaseFairseqModel, TransformerModelBase, FairseqDecoder)
    for name in PROBABILITIES
    if (cls, name) in FUNCTIONS
}


# What stock decoding calls of an encoder, a decoder, a model and of what they consist of.
METHODS = (
    *("forward", "extract_features", "extract_features_scriptable", "output_layer"),
    *("forward_torchscript", "forward_scriptable", "forward_embedding", "residual_connection"),
    *("buffered_future_mask", "_call_impl", *PROBABILITIES),
)
CALLED = tuple((cls, name) for cls, name in FUNCTIONS if name in METHODS)


def global_gap() -> str | None:
    """What alters modules everywhere: hooks on all of them, a method replaced in a class of torch or fairseq."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "hooks on every module"
    for (cls, name), function in FUNCTIONS.items():
        if vars(cls).get(name) is not function:
            return f"{cls.__name__} with another {name}()"
    return None


def _harmless(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name not in TELLING
    return name in HARMLESS or name.startswith(HARMLESS_BEGINNINGS)


def _redefined(module: nn.Module, base: type) -> str | None:
    """Names the first method that a class between that of ``module`` and the first known one defines anew."""
    foreign: list[type] = []
    for cls in type(module).__mro__:
        if cls is base or cls in KNOWN or cls.__module__.startswith(OURS):
            for part in foreign:
                for name in vars(part):
                    if hasattr(cls, name) and not _harmless(name):
                        return f"{type(module).__name__} has a {name}() of its own"
            return None
        foreign.append(cls)
    return None


def _is_checkpointed(module: nn.Module, forward: Any) -> bool:
    """Whether that is fairseq's wrapper, which computes the same and keeps less for the backward pass."""
    if not isinstance(forward, functools.partial) or forward.func is not _checkpointed_forward:
        return False
    inner = forward.args[0]
    return getattr(inner, "__func__", None) is type(module).forward and inner.__self__ is module


def patched(module: nn.Module, names: Iterable[str] | None = None) -> str | None:
    """Names the first method that was put onto a module itself, None if none; of ``names`` only, if given."""
    cls, own = type(module), vars(module)
    for name in own if names is None else names:
        if name not in own or _harmless(name) or not callable(getattr(cls, name, None)):
            continue
        if name == "forward" and _is_checkpointed(module, own[name]):
            continue
        return name
    return None


def _hooked(module: nn.Module) -> bool:
    """Whether hooks run with a module; those of fairseq's quantisation noise do nothing outside training."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    noise = "fairseq.modules.quant_noise"
    return any(module.training or getattr(hook, "__module__", None) != noise for hook in hooks)


def _leaf_gap(module: nn.Module, kind: Kind) -> str | None:
    """What else than its parameters a leaf has, or does not have as ``nn.Parameter``."""
    name = type(module).__name__
    if set(module._parameters) != set(kind.parameters) or module._modules:
        return f"a {name} with other parameters than its own"
    for parameter in module._parameters.values():
        # A tensor with operators of its own (quantised, distributed) is not multiplied as it stands in memory.
        plain = torch._C._disabled_torch_function_impl
        if parameter is not None and type(parameter).__torch_function__ is not plain:
            return f"a {name} with a parameter of type {type(parameter).__name__}"
    return None


def altered(module: nn.Module, kind: Kind, called: bool = True) -> str | None:
    """What a module computes otherwise than its class, or reads, looking at nothing inside it.

    Args:
        kind: the one of its class.
        called: hooks count; not where its ``forward`` is called past them, as stock decoding does with the decoder.
    """
    cls = type(module).__name__
    if gap := _redefined(module, kind.base):
        return gap
    if name := patched(module):
        return f"a {cls} with a {name}() put onto it"
    if called and _hooked(module):
        return f"a {cls} with hooks"
    if kind.leaf and (gap := _leaf_gap(module, kind)):
        return gap
    return kind.values(module)


def _of_class(module: Any, kind: Kind) -> bool:
    if kind.leaf or kind in LISTS:
        return type(module) is kind.base
    return isinstance(module, kind.base)


def gap(module: Any, kinds: Kinds, name: str, called: bool = True) -> str | None:
    """What keeps a module from being read as one of ``kinds``, or a module in it; None when nothing does.

    Args:
        module: or None, which no kind is.
        name: of the module where it stands, for the message.
        called: as for :func:`altered`.
    """
    kind = next((kind for kind in kinds if _of_class(module, kind)), None)
    if kind is None:
        return f"{name} of type {type(module).__name__}"
    if found := altered(module, kind, called):
        return found
    for part, part_kinds in kind.parts.items():
        inner = getattr(module, part)
        if inner is None and part in kind.optional:
            continue
        if found := gap(inner, part_kinds, part):
            return found
    return None


def probabilities_gap(model: Any) -> str | None:
    """What makes a model's probabilities otherwise than by a softmax over its decoder's output, None if nothing."""
    for module in (model, model.decoder):
        for name in PROBABILITIES:
            method = getattr(module, name, None)
            if getattr(method, "__func__", method) not in _PLAIN_PROBABILITIES:
                return f"{type(module).__name__} has a {name}() of its own"
    return None
