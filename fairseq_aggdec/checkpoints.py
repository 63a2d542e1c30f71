"""Checks of the checkpoints a command names, before fairseq loads them: one sentence instead of a page of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fairseq_aggdec.compat import CheckpointError, check_checkpoint, unreadable

if TYPE_CHECKING:
    from fairseq.data import Dictionary

EMBEDDINGS = {
    "source": ("encoder.embed_tokens.weight", "--source-lang"),
    "target": ("decoder.embed_tokens.weight", "--target-lang"),
}


def check_models(paths: str | None, dictionaries: Mapping[str, Dictionary], data: str) -> None:
    """Raises :class:`CheckpointError` for the first checkpoint that cannot belong to the data.

    Args:
        paths: ``--path``, several joined by ``:``; a missing file is left to fairseq, which names it well.
        dictionaries: of ``source`` and ``target``.
        data: the data folder, for the message.
    """
    from fairseq.utils import split_paths

    for path in split_paths(paths) if paths else ():
        check_checkpoint(path)
        model = _parameters(path)
        if model is not None:
            _check_dictionaries(path, model, dictionaries, data)


def _parameters(path: str) -> Mapping[str, Any] | None:
    """Parameters of a checkpoint, mapped and not read; None where there is no such file or it cannot be mapped."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        return None
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise unreadable(path, error) from None
        return None  # written before torch 1.6: loadable, but not in pieces
    except Exception as error:  # a damaged file makes the loader raise nearly anything
        raise unreadable(path, error) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), Mapping):
        raise CheckpointError(f"{path} was not written by fairseq: it holds no model.")
    return state["model"]


def _check_dictionaries(
    path: str, model: Mapping[str, Any], dictionaries: Mapping[str, Dictionary], data: str
) -> None:
    if not any(name.startswith("encoder.") for name in model):
        raise CheckpointError(f"{path} has no encoder: this task decodes encoder-decoder models.")
    for side, (name, option) in EMBEDDINGS.items():
        size = len(dictionaries[side])
        if name in model and model[name].shape[0] != size:
            raise CheckpointError(
                f"{path} was trained with a {side} dictionary of {model[name].shape[0]} types, but the one in {data} "
                f"has {size}: name the data folder it was trained on, and check {option}."
            )
