"""``--base-checkpoint``: a model that begins as a trained Transformer, with the architecture of that checkpoint."""

import argparse
import logging
import re
from typing import Any

from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from omegaconf import DictConfig
from torch import nn

from fairseq_aggdec.compat import CheckpointError, load_checkpoint

logger = logging.getLogger(__name__)

# How to train, not what the model is: these stay as the command line has them.
TRAINING_OPTIONS = {
    "activation_dropout",
    "attention_dropout",
    "checkpoint_activations",
    "dropout",
    "offload_activations",
    "relu_dropout",
}


# Groups of fairseq-hydra-train: `encoder: {layers: 6}` is encoder_layers. What fairseq saves as encoder_layers beside
# such a group are defaults that count for nothing.
NESTED: dict[str, type[Any]] = {
    "encoder": EncDecBaseConfig,
    "decoder": DecoderConfig,
    "quant_noise": QuantNoiseConfig,
}


def architecture_options() -> set[str]:
    """Names of the options that shape a Transformer, fairseq's or one with local attention."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=None)
    TransformerModel.add_args(parser)
    return {*vars(parser.parse_args([])), "attention_span"} - TRAINING_OPTIONS


def saved_options(state: dict[str, Any], path: str) -> dict[str, Any]:
    """The model options of a checkpoint, of either age of fairseq."""
    config = state.get("cfg") or {}
    model = config.get("model") or state.get("args")
    if model is None:
        raise CheckpointError(f"--base-checkpoint {path} does not say which model it holds.")
    if isinstance(model, DictConfig):
        model = {str(name): model[name] for name in model}
    options: dict[str, Any] = dict(vars(model) if isinstance(model, argparse.Namespace) else model)
    for group in NESTED.keys() & options.keys():
        nested = vars(NESTED[group](**options.pop(group)))
        options |= {f"{group}_{name}": value for name, value in nested.items()}
    return options


def take_architecture(args: argparse.Namespace, path: str) -> dict[str, Any]:
    """Gives ``args`` the architecture of the checkpoint and returns the checkpoint's parameters by name."""
    state = load_checkpoint(path)
    saved = saved_options(state, path)
    for name in architecture_options() & set(saved):
        setattr(args, name, saved[name])
    logger.info("the architecture is that of --base-checkpoint %s", path)
    parameters: dict[str, Any] = state["model"]
    return parameters


def take_layers(args: argparse.Namespace, path: str, default: int | None = None) -> dict[str, Any]:
    """As :func:`take_architecture`, with ``--decoder-layers`` layers in the decoder.

    Fewer than the checkpoint has: its first ones. More: each in turn once or several times, so that their order stays.

    Args:
        args: ``decoder_layers`` is how many, None when the command line says nothing.
        path: of the checkpoint.
        default: how many then; None takes all.

    Raises:
        ValueError: less than one layer is wanted.
    """
    wanted = getattr(args, "decoder_layers", None) or default
    if wanted is not None and wanted < 1:
        raise ValueError(f"--decoder-layers {wanted}: a decoder has at least one layer")
    parameters = take_architecture(args, path)
    if wanted is None:
        return parameters
    present, args.decoder_layers = args.decoder_layers, wanted
    source = range(wanted) if wanted <= present else [n * present // wanted for n in range(wanted)]
    taken = {name: value for name, value in parameters.items() if layer_of(name) is None}
    for name, value in parameters.items():
        for n, layer in enumerate(source):
            if layer_of(name) == layer:
                taken[name.replace(f".{layer}.", f".{n}.", 1)] = value
    return taken


def layer_of(name: str) -> int | None:
    """Number of the decoder layer that the parameter ``name`` belongs to; None for one outside the layers."""
    match = re.match(r"decoder\.layers\.(\d+)\.", name)
    return int(match[1]) if match else None


def load_base(
    model: nn.Module, parameters: dict[str, Any], path: str, new: str | tuple[str, ...] = ()
) -> None:
    """Loads a base model's parameters into a model that may add modules to it.

    Args:
        model: receives them.
        parameters: of the base checkpoint.
        path: named in errors.
        new: prefix (or several) of the parameters that the base lacks; they keep their fresh values.

    Raises:
        CheckpointError: the checkpoint is of another kind of model or of other dictionaries.
    """
    kept = {name: value for name, value in parameters.items() if not name.startswith(new)}
    own = model.state_dict()
    for name, value in kept.items():
        if name not in own or own[name].shape != value.shape:
            shape = tuple(own[name].shape) if name in own else "no such parameter"
            raise CheckpointError(
                f"--base-checkpoint {path} does not fit this model and its dictionaries: "
                f"{name} is {tuple(value.shape)} there and {shape} here."
            )
    missing = [name for name in own if name not in kept and not name.startswith(new)]
    if missing:
        raise CheckpointError(f"--base-checkpoint {path} lacks {missing[0]}.")
    model.load_state_dict(kept, strict=False)
