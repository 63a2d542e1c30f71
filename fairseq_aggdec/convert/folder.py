"""Folders of Hugging Face transformers: configuration, tokenizer, weights. Nothing of it is run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_aggdec.stored.held_files import HeldFile
from fairseq_aggdec.stored.loading import read_stored, unreadable
from fairseq_aggdec.stored.progress import passing

KINDS = ("bart", "m2m_100", "marian", "mbart")  # values of model_type; NLLB is an m2m_100
POSITIONS = 1 << 14  # more has no model; some store no table that tells
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that is there counts


@dataclass(frozen=True)
class Folder:
    """A folder that ``save_pretrained`` wrote, or a downloaded one.

    Attributes:
        path: of the folder.
        kind: the ``model_type``, one of :data:`KINDS`.
        config: a ``transformers.PretrainedConfig``, which fills in what ``config.json`` leaves out.
        generation: a ``transformers.GenerationConfig``.
        tokenizer: the tokenizer in Python ("slow"), whose files fairseq can use.
    """

    path: Path
    kind: str
    config: Any
    generation: Any
    tokenizer: Any


def read(path: Path) -> Folder:
    """Everything but the weights.

    Raises:
        FileNotFoundError: the folder or a file that it needs is not there.
        ValueError: it holds another kind of model, or quantised weights.
        ModuleNotFoundError: transformers is not installed.
    """
    kind = _kind(path)
    import transformers

    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{path} holds quantised weights: convert the model before quantisation")
    if (path / "generation_config.json").exists():
        _json(path / "generation_config.json")  # a damaged one is named
        generation = transformers.GenerationConfig.from_pretrained(path)
    else:
        generation = transformers.GenerationConfig.from_model_config(config)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            path, use_fast=False, local_files_only=True
        )
    except Exception as error:  # depends on which file is missing, and of which tokenizer
        raise ValueError(
            f"the tokenizer in {path} cannot be read: its sentencepiece model, or vocab.json and merges.txt, must be "
            f"in the folder ({_first_line(error)})"
        ) from None
    return Folder(path, kind, config, generation, tokenizer)


def _kind(path: Path) -> str:
    if not path.is_dir():
        raise FileNotFoundError(str(path))
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} is no folder of Hugging Face transformers: it has no config.json")
    kind = _json(path / "config.json").get("model_type")
    if kind not in KINDS:
        raise ValueError(
            f"{path}: model_type {kind!r} cannot be converted, only {', '.join(KINDS)} can"
        )
    return str(kind)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return value


def _first_line(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:160]


def weights(path: Path) -> dict[str, Tensor]:
    """All tensors of the folder by name, on the CPU, in the type they are stored in.

    Raises:
        FileNotFoundError: there are no weights, or a part of them is missing.
        ValueError: a file is damaged, holds code or NaN, or its numbers are quantised.
    """
    tensors: dict[str, Tensor] = {}
    for file in _files(path):
        tensors |= _tensors(file)
    for name, value in passing(tensors.items(), "reading weights", " tensors"):
        whole = value.is_floating_point() and value.element_size() > 1
        if name.endswith(("weight", "bias")) and not whole:
            raise ValueError(
                f"{path} holds quantised weights ({name} is {value.dtype}): convert the model before quantisation"
            )
        if whole and value.isnan().any():
            raise ValueError(f"{path}: {name} holds numbers that are NaN: the model is damaged")
    return tensors


def check_sizes(folder: Folder, weights: Mapping[str, Tensor]) -> None:
    """Raises ``ValueError`` for sizes that no weights bear out, before anything is made of such a size."""
    longest = max((side for value in weights.values() for side in value.shape), default=0)
    limits = dict.fromkeys(("vocab_size", "decoder_vocab_size", "d_model"), longest)
    limits |= dict.fromkeys(("encoder_layers", "decoder_layers"), len(weights))
    limits["max_position_embeddings"] = POSITIONS
    heads = ("encoder_attention_heads", "decoder_attention_heads")
    limits |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", *heads), longest)
    for name, limit in limits.items():
        size = getattr(folder.config, name, None)
        if size is not None and (type(size) is not int or not 0 < size <= limit):
            raise ValueError(
                f"{folder.path}: its configuration has {name} {size!r:.40}, and its weights {limit} at most"
            )
    start = folder.config.decoder_start_token_id
    rows = getattr(folder.config, "decoder_vocab_size", None) or folder.config.vocab_size
    if start is not None and (type(start) is not int or not 0 <= start < rows):
        raise ValueError(
            f"{folder.path}: its configuration has decoder_start_token_id {start!r:.40}, which is none of {rows} types"
        )
    for name in heads:
        if folder.config.d_model % getattr(folder.config, name):
            raise ValueError(
                f"{folder.path}: its configuration has {name} {getattr(folder.config, name)}, which do not divide "
                f"the width {folder.config.d_model}"
            )


def _files(path: Path) -> list[Path]:
    for name in WEIGHTS:
        index = path / f"{name}.index.json"
        if (path / name).is_file():
            return [path / name]
        if index.is_file():  # a large model in several files, which lie beside it
            named = _json(index).get("weight_map")
            if not isinstance(named, dict):
                raise ValueError(f"{index} is damaged: it has no weight_map")
            return [path / Path(part).name for part in sorted(set(map(str, named.values())))]
    raise ValueError(f"{path} holds no weights: {' or '.join(WEIGHTS)} must be in the folder")


def _tensors(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise FileNotFoundError(str(file))
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        stored, refused = read_stored(HeldFile(file))
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a damaged file makes the loaders raise nearly anything
        raise unreadable(str(file), error) from None
    if refused or not isinstance(stored, dict):
        raise ValueError(f"{file} holds more than weights, which would run as code: it is refused")
    return {name: value for name, value in stored.items() if isinstance(value, Tensor)}
