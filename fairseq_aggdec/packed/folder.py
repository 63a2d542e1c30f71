"""Writing and opening folders of packed weights."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time_ns
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_aggdec.compat import ABOUT, NEW_ENTRIES, CheckpointError, checked_model
from fairseq_aggdec.kernels.layout import Layout
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.stored import PARTS, PackedProduct, Stored, attach, key_of
from fairseq_aggdec.kernels.switches import INSTRUCTIONS
from fairseq_aggdec.one_copy import take_tensors
from fairseq_aggdec.packed.files import (
    CHECKPOINT,
    VERSION,
    WEIGHTS,
    digest,
    mapped,
    read_tensors,
    stamp,
    write_tensors,
)

logger = logging.getLogger(__name__)

KINDS = ("fp32", "int8", "bf16")
# Beside the others: file -> its digest, and its stamp when it had that digest.
COMPARED = "compared.json"
# Nanoseconds without a change before a stamp is kept: of a younger file the clock could miss the next change.
SETTLED = 3 * 10**9
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


@dataclass(frozen=True)
class PackedFolder:
    """A folder that was opened and found sound.

    Attributes:
        kind: of :data:`KINDS`.
        stored: None where it was packed for other instructions or in an older layout: weights are packed anew.
    """

    path: Path
    kind: str
    stored: Stored | None

    @property
    def checkpoint(self) -> str:
        return str(self.path / CHECKPOINT)


def take_stored(checkpoint: str, model: nn.Module) -> None:
    """Says to a model loaded from the checkpoint of a folder that its packed weights are there.

    Raises:
        CheckpointError: the folder is damaged.
    """
    if (stored := _stored_beside(checkpoint)) is not None:
        attach(model, stored)


def load_stored(checkpoint: str, model: nn.Module) -> None:
    """Has a model that fairseq is about to load from the checkpoint of a folder use what is mapped there.

    fairseq reads the file into memory. Tensors that the mapped file has under the same name, with the same numbers,
    take their place, and the packed weights stand for them.

    Raises:
        CheckpointError: the folder is damaged.
    """
    stored = _stored_beside(checkpoint)
    if stored is None:
        return
    state = checked_model(checkpoint) or {}

    def exchange(given: dict[str, Tensor]) -> None:
        for name, mine in state["model"].items():
            read = given.get(name)
            if read is not None and read.dtype is mine.dtype and torch.equal(read, mine):
                given[name] = mine
        attach(model, stored)

    take_tensors(model, exchange)


def _stored_beside(checkpoint: str) -> Stored | None:
    """The packed weights of the folder whose checkpoint this is."""
    place = Path(checkpoint)
    inside = place.name == CHECKPOINT and is_folder(place.parent)
    return open_folder(place.parent).stored if inside else None


def checkpoints(arguments: Sequence[str], precision: bool = False) -> list[str]:
    """The arguments of a command, with the checkpoints of packed folders in place of these behind ``--path``.

    Args:
        precision: the command knows ``--int8`` and ``--bf16``: the folder's is added where none is said.

    Raises:
        CheckpointError: a folder is damaged.
    """
    found, kinds = list(arguments), set[str]()
    for number, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        behind = name == "--path" and not equals and number + 1 < len(arguments)
        if name != "--path" or not (equals or behind):
            continue
        paths = (arguments[number + 1] if behind else value).split(os.pathsep)
        for place, path in enumerate(paths):
            if is_folder(path):
                folder = open_folder(path)
                paths[place] = folder.checkpoint
                kinds.add(folder.kind)
        joined = os.pathsep.join(paths)
        found[number + behind] = joined if behind else f"--path={joined}"
    said = any(word.split("=")[0] in ("--int8", "--bf16", "--fp16") for word in arguments)
    if precision and not said:
        found += [f"--{kind}" for kind in kinds - {"fp32"}]
    return found


def is_folder(path: str | os.PathLike[str]) -> bool:
    return Path(path, ABOUT).is_file()


def open_folder(path: str | os.PathLike[str]) -> PackedFolder:
    """Opens a folder, after every byte in it was compared with what was written.

    Files that nobody has written to since they were compared are not read again; the file of stamps says so.

    Raises:
        CheckpointError: a file is damaged, cut or missing.
    """
    folder = Path(path)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about.pop("digest") != _of(about) or about["kind"] not in KINDS:
            raise ValueError("its contents are not those that were written")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(folder / ABOUT, folder, error) from None
    old = about["version"] != VERSION
    known, found = _compared(folder), {}
    for name, wanted in about["files"].items():
        if old and name == WEIGHTS:
            continue
        try:
            found[name] = [wanted, *stamp(folder / name)]  # before the file is read
            if known.get(name) != found[name] and digest(folder / name) != wanted:
                raise ValueError("its contents are not those that were written")
        except (OSError, ValueError, RuntimeError) as error:
            raise _damaged(folder / name, folder, error) from None
    if known != found:
        _keep(folder, found)
    return PackedFolder(folder, about["kind"], None if old else _stored(folder, about))


def _compared(folder: Path) -> Mapping[str, Any]:
    """Reads what :func:`_keep` wrote; nothing if there is no such file or it cannot be read."""
    try:
        found = json.loads((folder / COMPARED).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _keep(folder: Path, found: Mapping[str, Sequence[Any]]) -> None:
    """Writes digests and stamps of files, if all have settled and the folder can be written to."""
    last = max(time for one in found.values() for time in one[-2:])
    if time_ns() - last < SETTLED:
        return
    made = folder / f"{COMPARED}.{os.getpid()}"  # other processes may write it too
    with suppress(OSError):
        made.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        made.replace(folder / COMPARED)


def _stored(folder: Path, about: Mapping[str, Any]) -> Stored | None:
    library = kernels()
    if library is None or about["layout"] != asdict(Layout.of(library)):
        here = "none" if library is None else INSTRUCTIONS[library.aggdec_instructions()]
        logger.warning(
            "%s was packed for the kernels %s, and these are %s: its weights are packed anew, which takes time and "
            "memory; pack it on this machine",
            *(folder, about["instructions"], here),
        )
        return None
    try:
        tensors, _ = read_tensors(mapped(folder / WEIGHTS))
    except (ValueError, LookupError, TypeError, RuntimeError) as error:  # the disk has lost bytes
        raise _damaged(folder / WEIGHTS, folder, error) from None
    return Stored(str(folder / CHECKPOINT), Layout(**about["layout"]), about["products"], tensors)


def _damaged(path: Path, folder: Path, error: BaseException) -> CheckpointError:
    reason = str(error).split("\n")[0][:120] or type(error).__name__
    return CheckpointError(
        f"{path} is damaged ({reason}): write {folder} again with `aggdec pack`."
    )


def _of(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def write(
    folder: Path,
    kind: str,
    model: nn.Module,
    made: Sequence[PackedProduct],
    state: Mapping[str, Any],
    texts: Sequence[Path],
) -> None:
    """Writes a folder.

    Args:
        folder: a new one. kind: of :data:`KINDS`.
        model, made: a model and what :func:`~fairseq_aggdec.kernels.stored.noted` gave while it was packed.
        state: of its checkpoint.
        texts: folders in which dictionaries and subword models stand.
    """
    library = kernels()
    folder.mkdir(parents=True)
    files = _copy_texts(folder, texts)
    kept = {name: value for name, value in state.items() if name != "last_optimizer_state"}
    torch.save(NEW_ENTRIES | kept | {"last_optimizer_state": None}, folder / CHECKPOINT)
    names = {id(parameter): name for name, parameter in reversed([*model.named_parameters()])}
    tensors: dict[str, Tensor] = {}
    products: dict[str, dict[str, int]] = {}
    for one in made:
        if any(id(part.parameter) not in names for part in one.weights):
            continue
        own = [names[id(part.parameter)] + part.rows for part in one.weights]
        key = key_of(one.kind, one.relu, own)
        products[key] = {"inputs": one.product.inputs, "outputs": one.product.outputs}
        for part in PARTS:
            if (tensor := getattr(one.product, part)) is not None:
                tensors[f"{key}/{part}"] = tensor
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
    about = {
        "version": VERSION,
        "kind": kind,
        "instructions": INSTRUCTIONS[library.aggdec_instructions()],
        "layout": asdict(Layout.of(library)),
        "products": products,
        "files": {name: digest(folder / name) for name in (*files, CHECKPOINT, WEIGHTS)},
    }
    text = json.dumps(about | {"digest": _of(about)}, indent=1)
    (folder / ABOUT).write_text(text + "\n", encoding="utf-8")


def _copy_texts(folder: Path, texts: Sequence[Path]) -> list[str]:
    found: dict[str, Path] = {}
    for place in texts:
        for pattern in TEXT_FILES:
            found |= {path.name: path for path in sorted(place.glob(pattern)) if path.is_file()}
    for own in (ABOUT, COMPARED):
        found.pop(own, None)
    for name, path in found.items():
        shutil.copyfile(path, folder / name)
    return list(found)
