"""Finds the modules that are exactly what their classes are, so that their weights may be read past their ``forward``.

The fast forms read parameters and attributes and call no ``forward``. So every module that they read must be plain: of
the very class that is known here, without hooks, without a method patched onto it, without a parametrisation, with the
parameters and attributes that the formula assumes. :func:`gap` names the first thing that is not.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models import FairseqDecoder
from fairseq.models.fairseq_model import BaseFairseqModel
from fairseq.models.speech_to_text.s2t_transformer import (
    S2TTransformerModel,
    TransformerDecoderScriptable,
)
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

from fairseq_aggdec.startup.known_fairseq import changed, changed_function

# What runs when a module is called, and what a list of modules gives: of all names with underscores around these only.
TELLING = frozenset(
    (
        *("__call__", "__getattr__", "__getattribute__"),
        *("__iter__", "__getitem__", "__len__"),
    )
)
# Of all methods of nn.Module these compute; libraries replace others (cuda, _apply, register_buffer ...).
COMPUTING = frozenset(("forward", "_call_impl", "_wrapped_call_impl", "_slow_forward"))
# Methods that say nothing of what is computed when a batch is decoded; so do all with these beginnings.
HARMLESS = frozenset(vars(nn.Module)) - COMPUTING
HARMLESS |= frozenset(
    (
        *("max_positions", "max_decoder_positions", "get_targets", "set_beam_size"),
        *("add_args", "hub_models", "from_pretrained", "set_num_updates", "set_epoch"),
        *("reset_parameters", "make_generation_fast_"),
        *("upgrade_state_dict", "upgrade_state_dict_named"),
    )
)
HARMLESS_BEGINNINGS = ("build_", "prepare_for_", "_load_", "_save_", "_abc_")


def _harmless(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name not in TELLING
    return name in HARMLESS or name.startswith(HARMLESS_BEGINNINGS)


def methods(cls: type) -> dict[str, Any]:
    """Methods of a class that may change what is computed, by name, wherever they were inherited from."""
    by_name = {}
    for name in dir(cls):
        method = None if _harmless(name) else getattr(cls, name, None)
        # Some attributes are made anew whenever they are read: these cannot be compared.
        if callable(method) and getattr(cls, name, None) is method:
            by_name[name] = method
    return by_name


# Where the classes come from whose own methods are known here.
OURS = "fairseq_aggdec."
# The methods that turn a decoder's output into probabilities as a softmax does.
PROBABILITIES = ("get_normalized_probs", "get_normalized_probs_scriptable")


# What of a module's attributes the formula does not know: what that is, and whether it is there.
Wrong = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """Describes a kind of plain module.

    Args:
        base: its class. A subclass counts where it defines no method of ``base`` anew, or is known here.
        parameters: of a leaf, in which there is nothing else and whose subclasses do not count; those that are None
            count as there. None: it is no leaf.
        parts: names of the modules in it that are read; those that are None count as there.
        wrong: tells what the formula does not know of a module's attributes.
    """

    base: type[nn.Module]
    parameters: tuple[str, ...] | None = None
    parts: tuple[str, ...] = ()
    wrong: Callable[[Any], Wrong] = lambda module: {}


Kinds = tuple[Kind, ...]

# Classes of fairseq whose own methods are known here.
KNOWN: tuple[type, ...] = (
    *(TransformerDecoder, TransformerDecoderBase, TransformerEncoder, TransformerEncoderBase),
    TransformerDecoderScriptable,
    *(TransformerDecoderLayer, TransformerDecoderLayerBase),
    *(TransformerEncoderLayer, TransformerEncoderLayerBase),
    *(MultiheadAttention, nn.ModuleList, LayerDropModuleList),
)
# Classes of user directories, see :func:`know`.
KNOWN_TOO: set[type] = set()


def know(*classes: type) -> None:
    """Says that packed weights represent what the methods of these classes compute."""
    KNOWN_TOO.update(classes)


READ = (*KNOWN, nn.Linear, nn.LayerNorm, nn.Embedding, FairseqDropout, nn.Module, FairseqDecoder)
READ += (SinusoidalPositionalEmbedding, LearnedPositionalEmbedding, BaseFairseqModel)
READ += (TransformerModelBase, S2TTransformerModel)
# The methods of these classes as they were imported: whoever replaces one alters every module of the class.
FUNCTIONS = {(cls, name): method for cls in READ for name, method in methods(cls).items()}


def _is_foreign(cls: type, name: str) -> bool:
    """Tells whether a method that stands in a class is not the one that the module of the class defines for it."""
    method = vars(cls)[name]
    method = method.__func__ if isinstance(method, staticmethod) else method
    if not inspect.isfunction(method):
        return True
    if method.__globals__ is not vars(sys.modules[cls.__module__]):
        return True  # also a wrapper that says to be what it wraps
    return method.__qualname__.split(".")[0] not in (cls.__name__, "_forward_unimplemented")


# Those that had been replaced before they were imported here, and those that a fork of fairseq has in their place.
FOREIGN = [
    (origin, name)
    for cls, name in FUNCTIONS
    for origin in cls.__mro__[:-1]
    if name in vars(origin) and (_is_foreign(origin, name) or changed(origin, name))
]
OTHER_FUNCTION = changed_function()
_PLAIN_PROBABILITIES = {
    FUNCTIONS[cls, name]
    for cls in (BaseFairseqModel, TransformerModelBase, S2TTransformerModel, FairseqDecoder)
    for name in PROBABILITIES
    if (cls, name) in FUNCTIONS and not any(foreign == name for _, foreign in FOREIGN)
}


def global_gap() -> str | None:
    """Names what alters modules everywhere: hooks on all of them, a method replaced in a class of torch or fairseq."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "hooks on every module"
    for cls, name in FOREIGN:
        return f"{cls.__name__} with another {name}()"
    if OTHER_FUNCTION is not None:
        return f"another {OTHER_FUNCTION}()"
    for (cls, name), method in FUNCTIONS.items():
        if getattr(cls, name, None) is not method:
            return f"{cls.__name__} with another {name}()"
    return None


# What BART puts in place of its encoder's reorder_encoder_out() for beam search: cross-attention then reads the one
# source of all hypotheses, which computes the same.
_UNORDERED = FUNCTIONS[TransformerEncoderBase, "_reorder_encoder_out"]


def _redefined(module: nn.Module, base: type) -> str | None:
    """Names the first method that ``module`` has from a class that is not known, in place of a known one."""
    order = type(module).__mro__
    known = [
        cls in KNOWN or cls in KNOWN_TOO or cls.__module__.startswith(OURS) or cls in base.__mro__
        for cls in order
    ]
    if all(known):
        return None
    seen: set[str] = set()
    for place, cls in enumerate(order):
        for name in () if known[place] else vars(cls):
            replaces = name not in seen and not _harmless(name)
            if replaces and any(name in vars(order[i]) for i in range(len(order)) if known[i]):
                return f"{type(module).__name__} has a {name}() of its own"
        seen.update(vars(cls))
    return None


def _is_checkpointed(module: nn.Module, forward: Any) -> bool:
    """Tells whether that is fairseq's wrapper, which computes the same and keeps less for the backward pass."""
    if not isinstance(forward, functools.partial) or forward.func is not _checkpointed_forward:
        return False
    inner = forward.args[0]
    return getattr(inner, "__func__", None) is type(module).forward and inner.__self__ is module


def _patched(module: nn.Module) -> str | None:
    """Names the first method that was put onto a module itself, None if none."""
    cls, attributes = type(module), vars(module)
    for name in attributes:
        if _harmless(name) or not callable(getattr(cls, name, None)):
            continue
        if name == "forward" and _is_checkpointed(module, attributes[name]):
            continue
        if getattr(attributes[name], "__func__", None) is _UNORDERED:
            continue
        return name
    return None


def _hooked(module: nn.Module) -> bool:
    """Tells whether hooks run with a module; those of fairseq's quantisation noise do nothing outside training."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    noise = "fairseq.modules.quant_noise"
    return any(module.training or getattr(hook, "__module__", None) != noise for hook in hooks)


def _leaf_gap(module: nn.Module, parameters: Iterable[str]) -> str | None:
    """Names what else than its parameters a leaf has, or does not have as ``nn.Parameter``."""
    name = type(module).__name__
    if set(module._parameters) != set(parameters) or module._modules:
        return f"a {name} with other parameters than its own"
    for parameter in module._parameters.values():
        # A tensor with operators of its own (quantised, distributed) is not multiplied as it stands in memory.
        plain = torch._C._disabled_torch_function_impl
        if parameter is not None and type(parameter).__torch_function__ is not plain:
            return f"a {name} with a parameter of type {type(parameter).__name__}"
    return None


def altered(module: nn.Module, kind: Kind, called: bool = True) -> str | None:
    """Names what a module computes otherwise than its class, or reads, looking at nothing inside it.

    Args:
        kind: the one of its class.
        called: hooks count; not where its ``forward`` is called past them, as stock decoding does with the decoder.
    """
    cls = type(module).__name__
    if gap := _redefined(module, kind.base):
        return gap
    if name := _patched(module):
        return f"a {cls} with a {name}() put onto it"
    if called and _hooked(module):
        return f"a {cls} with hooks"
    return None if kind.parameters is None else _leaf_gap(module, kind.parameters)


def wrong(module: nn.Module, kind: Kind) -> str | None:
    """Names what the formula does not know of a module's attributes; its parts are what they are taken for."""
    faults = (what for what, there in kind.wrong(module).items() if there)
    return next((f"a {type(module).__name__} with {what}" for what in faults), None)


def probabilities_gap(model: Any) -> str | None:
    """Names what makes a model's probabilities otherwise than by a softmax over its decoder's output, None if
    nothing."""
    for module in (model, model.decoder):
        for name in PROBABILITIES:
            method = getattr(module, name, None)
            if getattr(method, "__func__", method) not in _PLAIN_PROBABILITIES:
                return f"{type(module).__name__} has a {name}() of its own"
    return None
