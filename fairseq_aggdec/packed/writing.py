"""Writing folders of packed weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_aggdec.kernels.layout import Layout
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.stored import PARTS, PackedProduct, key_of
from fairseq_aggdec.kernels.switches import INSTRUCTIONS
from fairseq_aggdec.packed.contents import COMPARED, digest_of
from fairseq_aggdec.packed.files import CHECKPOINT, VERSION, WEIGHTS, digest, write_tensors
from fairseq_aggdec.stored import progress
from fairseq_aggdec.stored.held_files import HeldFile
from fairseq_aggdec.stored.loading import ABOUT, NEW_ENTRIES

HALVES = torch.float16, torch.bfloat16
TEXT_FILES = (
    "dict.*.txt",
    "dict.txt",
    "languages.txt",
    "*.model",
    "*.codes",
    "codes",
    "*.bpe",
    "*.json",
)


def write(
    folder: Path,
    kind: str,
    model: nn.Module,
    made: Sequence[PackedProduct],
    state: Mapping[str, Any],
    texts: Sequence[Path],
) -> int:
    """Writes a folder; returns how many of the products that were packed it has.

    Args:
        folder: a new one. kind: of :data:`KINDS`.
        model, made: a model and what :func:`~fairseq_aggdec.kernels.stored.noted` gave while it was packed.
        state: of its checkpoint.
        texts: folders in which dictionaries and subword models stand.
    """
    library = kernels()
    folder.mkdir(parents=True)
    files = _copy_texts(folder, texts)
    kept = {**state, "last_optimizer_state": None, "model": _in_fp32(state["model"])}
    progress.save(NEW_ENTRIES | kept, folder / CHECKPOINT)
    names = {id(parameter): name for name, parameter in reversed([*model.named_parameters()])}
    tensors: dict[str, Tensor] = {}
    own_products = [one for one in made if all(id(part.parameter) in names for part in one.weights)]
    for one in own_products:
        rows = [names[id(part.parameter)] + part.rows for part in one.weights]
        key = key_of(one.kind, one.relu, rows)
        for part in PARTS:
            if (tensor := getattr(one.product, part)) is not None:
                tensors[f"{key}/{part}"] = tensor
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
    about = {
        "version": VERSION,
        "kind": kind,
        "instructions": INSTRUCTIONS[library.aggdec_instructions()],
        "layout": asdict(Layout.of(library)),
        "files": {name: digest(HeldFile(folder / name)) for name in (*files, CHECKPOINT, WEIGHTS)},
    }
    text = json.dumps(about | {"digest": digest_of(about)}, indent=1)
    (folder / ABOUT).write_text(text + "\n", encoding="utf-8")
    return len(own_products)


def _in_fp32(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters as a model in fp32 has them, which loses nothing: only such a model is mapped. A tensor with several
    names stays one."""
    known: dict[tuple[Any, ...], Tensor] = {}

    def converted(x: Tensor) -> Tensor:
        if x.dtype not in HALVES:
            return x
        place = x.data_ptr(), x.shape, x.stride(), x.dtype
        return known.setdefault(place, x.float())

    return {name: converted(x) for name, x in parameters.items()}


def _copy_texts(folder: Path, texts: Sequence[Path]) -> list[str]:
    paths: dict[str, Path] = {}
    for place in texts:
        for pattern in TEXT_FILES:
            paths |= {path.name: path for path in sorted(place.glob(pattern)) if path.is_file()}
    for generated in (ABOUT, COMPARED):
        paths.pop(generated, None)
    for name, path in paths.items():
        shutil.copyfile(path, folder / name)
    return list(paths)
