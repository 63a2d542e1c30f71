"""Writes a folder with a model's packed weights."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fairseq_aggdec.api.loading import from_pretrained, make_config
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.kernels.library import kernels, multiplies_bf16
from fairseq_aggdec.kernels.stored import noted
from fairseq_aggdec.methods.shared.loading import load_drafter
from fairseq_aggdec.models.base_checkpoint import MASK_EMBEDDING
from fairseq_aggdec.models.blockwise_transformer import NEW
from fairseq_aggdec.packed.folder import is_folder
from fairseq_aggdec.packed.writing import write
from fairseq_aggdec.stored import progress
from fairseq_aggdec.stored.loading import load_checkpoint
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask


def pack(model: Path, data: Path, output: Path, kind: str) -> tuple[int, int]:
    """Writes the folder, beside its name first; returns how many products it has, of how many that were packed.

    Args:
        kind: ``fp32``, ``int8`` or ``bf16``.

    Raises:
        SystemExit: there is nothing to pack, nothing to pack with, or the folder is there.
    """
    if output.exists():
        raise SystemExit(f"error: {output} exists: name a new folder")
    if is_folder(model):
        raise SystemExit(
            f"error: {model} is packed already: name the checkpoint that it was made of"
        )
    if kernels() is None or (kind == "bf16" and not multiplies_bf16()):
        raise SystemExit(f"error: there are no compiled kernels for {kind} on this machine")
    state = load_checkpoint(str(model))
    bar = progress.counting("packing", " weights", multiplied(state["model"]))
    with bar, noted(bar.update) as made:
        build = _drafter if MASK_EMBEDDING in state["model"] else _model
        built = build(model, data, kind, state)
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    stored = write(partial, kind, built, made, state, [model.parent, data])
    partial.rename(output)
    return stored, len(made)


def multiplied(parameters: Mapping[str, Any]) -> int:
    """The weights of all products of a model: its matrices but the tables of embeddings and positions.

    A table that is the output's weight too counts once, as that.
    """
    output = "decoder.output_projection.weight"
    ends = [] if output in parameters else ["decoder.embed_tokens.weight"]  # older than that name
    sizes = {
        value.data_ptr(): value.numel()
        for name, value in parameters.items()
        if isinstance(value, Tensor) and value.dim() == 2 and ("embed_" not in name or name in ends)
    }
    return sum(sizes.values())


def _model(path: Path, data: Path, kind: str, state: Mapping[str, Any]) -> nn.Module:
    """The model in a checkpoint, after all that decodes with it was packed."""
    heads = any(name.startswith(NEW) for name in state["model"])
    dtype = "bf16" if kind == "bf16" else None
    decoding = "blockwise" if heads else "beam"
    translator = from_pretrained(
        path, data, decoding, beam=1, device="cpu", int8=kind == "int8", dtype=dtype
    )
    model: nn.Module = translator.models[0]
    return model


def _drafter(path: Path, data: Path, kind: str, state: Mapping[str, Any]) -> nn.Module:
    """The drafter in a checkpoint, after it was packed.

    Raises:
        SystemExit: in bfloat16 a drafter has a copy of its weights, which no file holds.
    """
    if kind == "bf16":
        raise SystemExit(f"error: {path} is a drafter: pack it without --bf16")
    cfg = make_config([str(path)], str(data), "greedy", 1, state.get("cfg") or {}, {})
    model = load_drafter(str(path), TranslationAggdecTask.setup_task(cfg.task))
    int8 = kind == "int8"
    drafter = NarDrafter(model, precision=Precision(int8=int8), int8=int8)
    drafter.pack_decoder()
    if not model.shares_encoder:
        drafter.pack_encoder()
    return model
