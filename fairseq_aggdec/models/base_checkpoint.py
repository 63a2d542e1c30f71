"""Weights that a model takes over from a checkpoint: ``--base-checkpoint``, a trained Transformer with its
architecture; and what a drafter takes over from its verifier, the encoder as it is, or parameters to begin with.

An encoder that is taken over is the same function of the source, not only the same weights. Embedding scale, kind of
positions, norms and activation of the verifier's encoder stand in options that encoder and decoder share. They are kept
apart (``encoder_options``), so that the drafter's decoder may differ.
"""

import argparse
import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from fairseq.models.transformer import DEFAULT_MAX_SOURCE_POSITIONS, TransformerModel
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from fairseq.models.transformer.transformer_legacy import base_architecture
from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_aggdec.stored.loading import CheckpointError, load_checkpoint

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

EMBEDDING, POSITIONS = "embed_tokens.weight", "embed_positions.weight"
MASK_EMBEDDING = "decoder.mask_embedding"  # the parameter by which a drafter is known

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
        built, kept = (
            {name: value for name, value in state.items() if not name.startswith(new)}
            for state in (model.state_dict(), self.parameters)
        )
        message = "does not fit this model and its dictionaries"
        check_fit(built, kept, f"--base-checkpoint {self.path} {message}")
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
    """Takes over weights, as :func:`take_base` does, with ``--decoder-layers`` layers in the decoder.

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


def check_fit(built: Mapping[str, Tensor], stored: Mapping[str, Tensor], message: str) -> None:
    """Raises ``CheckpointError``, with the message first, unless both have the same parameters by name and shape."""
    for name in {**stored, **built}:
        there, here = (
            tuple(state[name].shape) if name in state else "no such parameter"
            for state in (stored, built)
        )
        if there != here:
            raise CheckpointError(f"{message}: {name} is {there} there and {here} here.")


def take_encoder_options(args: argparse.Namespace, path: str) -> dict[str, Any]:
    """Sets ``args.encoder_options`` to the architecture of a verifier and returns the verifier's parameters by name.

    The options of ``args`` that concern the encoder alone are set as well.

    Raises:
        CheckpointError: the file holds no verifier with a Transformer encoder.
    """
    state = load_checkpoint(path)
    parameters: dict[str, Any] = state["model"]
    if MASK_EMBEDDING in parameters:
        raise CheckpointError(f"{path} is a drafter: the encoder is to be taken from the verifier.")
    verifier = argparse.Namespace(**saved_options(state, path))
    base_architecture(verifier)
    if getattr(verifier, "max_source_positions", None) is None:
        verifier.max_source_positions = DEFAULT_MAX_SOURCE_POSITIONS
    options = {
        name: value for name, value in vars(verifier).items() if name in architecture_options()
    }
    for name, value in options.items():
        if name.startswith("encoder_") or name == "max_source_positions":
            setattr(args, name, value)
    args.encoder_embed_path = None
    args.encoder_options = options
    return parameters


def encoder_arguments(args: Any) -> Any:
    """Arguments that the encoder is built from: the verifier's architecture, if there is one, with the drafter's own
    dropout."""
    if not args.encoder_options:
        return args
    training = {name: getattr(args, name) for name in TRAINING_OPTIONS if hasattr(args, name)}
    return argparse.Namespace(**(args.encoder_options | training))


def begin_as(decoder: nn.Module, path: str) -> None:
    """Gives a drafter's decoder what fits it, by name and shape, in that of a verifier: embeddings, layers, projection.

    Of learned positions a drafter has more, those of the slots after the longest prefix; these stay as they are.

    Raises:
        CheckpointError: not even the embeddings fit.
    """
    parameters: dict[str, Any] = load_checkpoint(path)["model"]
    built = decoder.state_dict()
    fits = {
        name: parameters[f"decoder.{name}"]
        for name, value in built.items()
        if getattr(parameters.get(f"decoder.{name}"), "shape", None) == value.shape
    }
    positions = parameters.get(f"decoder.{POSITIONS}")
    if positions is not None and positions.shape[1:] == built[POSITIONS].shape[1:]:
        count = min(len(positions), len(built[POSITIONS]))
        fits[POSITIONS] = torch.cat([positions[:count], built[POSITIONS][count:].to(positions)])
    if EMBEDDING not in fits:
        raise CheckpointError(
            f"--init-decoder-from {path} does not fit this model and its target dictionary: {EMBEDDING} is "
            f"{tuple(built[EMBEDDING].shape)} here."
        )
    decoder.load_state_dict(fits, strict=False)
    logger.info("%d of %d parameters of the decoder begin as in %s", len(fits), len(built), path)


def load_encoder(encoder: nn.Module, parameters: dict[str, Any], path: str) -> None:
    """Gives the encoder the parameters of a verifier's.

    Raises:
        CheckpointError: they do not fit, which the dictionary alone can cause.
    """
    stored = {name.removeprefix("encoder."): value for name, value in parameters.items()}
    wanted = dict(encoder.named_parameters())
    there = {name: stored[name] for name in wanted if name in stored}
    check_fit(
        wanted, there, f"The encoder of {path} does not fit this model and its source dictionary"
    )
    encoder.load_state_dict(there, strict=False)
