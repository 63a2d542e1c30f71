"""What a drafter takes over from its verifier: the encoder as it is, or parameters to begin with.

An encoder that is taken over is the same function of the source, not only the same weights.

Embedding scale, kind of positions, norms and activation of the verifier's encoder stand in options that encoder and
decoder share. They are kept apart (``encoder_options``), so that the drafter's decoder may differ.
"""

import logging
from argparse import Namespace
from typing import Any

import torch
from fairseq.models.transformer import DEFAULT_MAX_SOURCE_POSITIONS
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import nn

from fairseq_aggdec.compat import CheckpointError, load_checkpoint
from fairseq_aggdec.models.base_checkpoint import (
    TRAINING_OPTIONS,
    architecture_options,
    check_fit,
    saved_options,
)

logger = logging.getLogger(__name__)

EMBEDDING, POSITIONS = "embed_tokens.weight", "embed_positions.weight"
MASK_EMBEDDING = "decoder.mask_embedding"  # the parameter by which a drafter is known


def take_encoder_options(args: Namespace, path: str) -> dict[str, Any]:
    """Sets ``args.encoder_options`` to the architecture of a verifier and returns the verifier's parameters by name.

    The options of ``args`` that concern the encoder alone are set as well.

    Raises:
        CheckpointError: the file holds no verifier with a Transformer encoder.
    """
    state = load_checkpoint(path)
    parameters: dict[str, Any] = state["model"]
    if MASK_EMBEDDING in parameters:
        raise CheckpointError(f"{path} is a drafter: the encoder is to be taken from the verifier.")
    verifier = Namespace(**saved_options(state, path))
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
    """What the encoder is built from: the verifier's architecture, if there is one, with the drafter's own dropout."""
    if not args.encoder_options:
        return args
    training = {name: getattr(args, name) for name in TRAINING_OPTIONS if hasattr(args, name)}
    return Namespace(**(args.encoder_options | training))


def begin_as(decoder: nn.Module, path: str) -> None:
    """Gives a drafter's decoder what fits it, by name and shape, in that of a verifier: embeddings, layers, projection.

    Of learned positions a drafter has more, those of the slots after the longest prefix; these stay as they are.

    Raises:
        CheckpointError: not even the embeddings fit.
    """
    parameters: dict[str, Any] = load_checkpoint(path)["model"]
    own = decoder.state_dict()
    fits = {
        name: parameters[f"decoder.{name}"]
        for name, value in own.items()
        if getattr(parameters.get(f"decoder.{name}"), "shape", None) == value.shape
    }
    positions = parameters.get(f"decoder.{POSITIONS}")
    if positions is not None and positions.shape[1:] == own[POSITIONS].shape[1:]:
        count = min(len(positions), len(own[POSITIONS]))
        fits[POSITIONS] = torch.cat([positions[:count], own[POSITIONS][count:].to(positions)])
    if EMBEDDING not in fits:
        raise CheckpointError(
            f"--init-decoder-from {path} does not fit this model and its target dictionary: {EMBEDDING} is "
            f"{tuple(own[EMBEDDING].shape)} here."
        )
    decoder.load_state_dict(fits, strict=False)
    logger.info("%d of %d parameters of the decoder begin as in %s", len(fits), len(own), path)


def load_encoder(encoder: nn.Module, parameters: dict[str, Any], path: str) -> None:
    """Gives the encoder the parameters of a verifier's.

    Raises:
        CheckpointError: they do not fit, which the dictionary alone can cause.
    """
    found = {name.removeprefix("encoder."): value for name, value in parameters.items()}
    wanted = dict(encoder.named_parameters())
    there = {name: found[name] for name in wanted if name in found}
    check_fit(
        wanted, there, f"The encoder of {path} does not fit this model and its source dictionary"
    )
    encoder.load_state_dict(there, strict=False)
