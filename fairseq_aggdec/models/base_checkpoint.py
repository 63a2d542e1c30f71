"""``--base-checkpoint``: a model that begins as a trained Transformer, with the architecture of that checkpoint."""

import argparse
import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from omegaconf import DictConfig
from torch import Tensor, nn

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


class Base(NamedTuple):
    """A trained Transformer that a model begins as; its parameters by name."""

    path: str
    parameters: dict[str, Any]

    def load(self, model: nn.Module, new: str | tuple[str, ...] = ()) -> None:
        """Gives the parameters to a model that may have modules which the base lacks, with names that begin as ``new``.

        Raises:
            CheckpointError: the checkpoint is of another kind of model or of other dictionaries.
        """
        own, kept = (
            {name: value for name, value in state.items() if not name.startswith(new)}
            for state in (model.state_dict(), self.parameters)
        )
        message = "does not fit this model and its dictionaries"
        check_fit(own, kept, f"--base-checkpoint {self.path} {message}")
        model.load_state_dict(kept, strict=False)


def take_base(args: argparse.Namespace) -> Base | None:
    """Gives ``args`` the architecture of ``--base-checkpoint``, if there is one, and takes the option away: the weights
    are in the model's own checkpoints from now on."""
    path, args.base_checkpoint = getattr(args, "base_checkpoint", None), None
    if not path:
        return None
    state = load_checkpoint(path)
    saved = saved_options(state, path)
    for name in architecture_options() & set(saved):
        setattr(args, name, saved[name])
    logger.info("the architecture is that of --base-checkpoint %s", path)
    return Base(path, state["model"])


def take_layers(args: argparse.Namespace, default: int | None = None) -> Base | None:
    """As :func:`take_base`, with ``--decoder-layers`` layers in the decoder.

    Fewer than the checkpoint has: its first ones. More: each in turn once or several times, so that their order stays.

    Args:
        args: ``decoder_layers`` is how many, None when the command line says nothing.
        default: how many then; None takes all.

    Raises:
        ValueError: less than one layer is wanted.
    """
    wanted = getattr(args, "decoder_layers", None)
    base = take_base(args)
    if base is None or (wanted := wanted or default) is None:
        return base
    if wanted < 1:
        raise ValueError(f"--decoder-layers {wanted}: a decoder has at least one layer")
    present, args.decoder_layers = args.decoder_layers, wanted
    source = range(wanted) if wanted <= present else [n * present // wanted for n in range(wanted)]
    taken = {name: value for name, value in base.parameters.items() if layer_of(name) is None}
    for name, value in base.parameters.items():
        for n, layer in enumerate(source):
            if layer_of(name) == layer:
                taken[name.replace(f".{layer}.", f".{n}.", 1)] = value
    return Base(base.path, taken)


def layer_of(name: str) -> int | None:
    """Number of the decoder layer that the parameter ``name`` belongs to; None for one outside the layers."""
    match = re.match(r"decoder\.layers\.(\d+)\.", name)
    return int(match[1]) if match else None


def check_fit(own: Mapping[str, Tensor], found: Mapping[str, Tensor], message: str) -> None:
    """Raises ``CheckpointError``, with the message first, unless both have the same parameters by name and shape."""
    for name in {**found, **own}:
        there, here = (
            tuple(state[name].shape) if name in state else "no such parameter"
            for state in (found, own)
        )
        if there != here:
            raise CheckpointError(f"{message}: {name} is {there} there and {here} here.")
