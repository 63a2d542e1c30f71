"""Which modules are exactly what their classes are, so that their weights may be read past their ``forward``.

The fast forms read parameters and attributes and call no ``forward``. So every module that they read must be plain: of
the very class that is known here, without hooks, without a method patched onto it, without a parametrisation, with the
parameters and attributes that the formula assumes. :func:`gap` names the first thing that is not.
"""

import functools
import inspect
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
)
from fairseq.modules.checkpoint_activations import _checkpointed_forward
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayer,
    TransformerDecoderLayerBase,
    TransformerEncoderLayer,
    TransformerEncoderLayerBase,
)
from torch import nn
from torch.nn.modules import module as torch_module

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


def _harmless(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name not in TELLING
    return name in HARMLESS or name.startswith(HARMLESS_BEGINNINGS)


# Where the classes come from whose own methods are known here.
OURS = "fairseq_aggdec."
# The methods that turn a decoder's output into probabilities as a softmax does.
PROBABILITIES = ("get_normalized_probs", "get_normalized_probs_scriptable")


@dataclass(frozen=True)
class Kind:
    """What a plain module is.

    Args:
        base: its class. A subclass counts where it defines no method of ``base`` anew, or is known here.
        exact: no subclass counts.
        leaf: neither, and there is nothing in it but ``parameters``.
        parameters: of a leaf; those that are None count as there.
        parts: modules in it that are read, by name.
        optional: parts that may be None.
        values: names an attribute that the formula does not know, None if there is none.
    """

    base: type[nn.Module]
    exact: bool = True
    leaf: bool = True
    parameters: tuple[str, ...] = ()
    parts: Mapping[str, "Kinds"] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    values: Callable[[Any], str | None] = lambda module: None


Kinds = tuple[Kind, ...]

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
# (PyTorch's compiler replaces nn.Module.__init__, which computes nothing.)
FUNCTIONS = {
    (cls, name): value
    for cls in READ
    for name, value in vars(cls).items()
    if inspect.isfunction(value) and not _harmless(name)
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


# What BART puts in place of its encoder's reorder_encoder_out() for beam search: cross-attention then reads the one
# source of all hypotheses, which computes the same.
_UNORDERED = FUNCTIONS[TransformerEncoderBase, "_reorder_encoder_out"]


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
        if getattr(own[name], "__func__", None) is _UNORDERED:
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
    if kind.exact:
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
