"""Writing and opening folders of packed weights."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_aggdec.kernels.layout import Layout
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.stored import Stored, attach, is_part
from fairseq_aggdec.kernels.switches import INSTRUCTIONS
from fairseq_aggdec.packed.contents import COMPARED, OTHER, Contents
from fairseq_aggdec.packed.files import (
    CHECKPOINT,
    WEIGHTS,
    digest,
    mapped,
    parsed,
    read_tensors,
    sound,
)
from fairseq_aggdec.stored.held_files import HeldFile, check_named, hold
from fairseq_aggdec.stored.loading import (
    ABOUT,
    CheckpointError,
    checked_model,
    load_checkpoint,
    maps,
)
from fairseq_aggdec.stored.one_copy import take_tensors
from fairseq_aggdec.stored.options import printable

logger = logging.getLogger(__name__)

# Nanoseconds without a change before a stamp is kept: of a younger file the clock could miss the next change.
SETTLED = 3 * 10**9


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model, opened together and held open: a checkpoint, or a folder of ``aggdec pack``.

    Attributes:
        checkpoint: its path.
        held: the files by their names; none where there is no such file.
        kind: of :data:`KINDS`; None for a checkpoint that is in no folder.
        stored: packed weights; None where there are none, or the folder was packed for other instructions or in an
            older layout: weights are packed anew.
    """

    checkpoint: str
    held: Mapping[str, HeldFile]
    kind: str | None = None
    stored: Stored | None = None

    @property
    def folder(self) -> Path | None:
        return None if self.kind is None else Path(self.checkpoint).parent

    @property
    def file(self) -> HeldFile | None:
        return self.held.get(Path(self.checkpoint).name)

    def load(self, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
        """The state of the checkpoint; arguments and errors: :func:`~fairseq_aggdec.stored.loading.load_checkpoint`."""
        return load_checkpoint(self.checkpoint, overrides, self.file)

    def attach(self, model: nn.Module) -> None:
        """Says to a model that was loaded from :meth:`load` what is packed for it, and keeps open what it is mapped
        from."""
        if self.stored is not None:
            attach(model, self.stored)
        if self.file is not None and (self.stored is not None or maps(self.file)):
            hold(
                model,
                [
                    self.held[name]
                    for name in (Path(self.checkpoint).name, WEIGHTS)
                    if name in self.held
                ],
            )

    def check(self) -> None:
        """Checks, after everything was loaded, that names led to the files that are held.

        Raises:
            CheckpointError: a file was replaced meanwhile.
        """
        check_named(self.held)


def open_model(path: str | os.PathLike[str]) -> ModelFiles:
    """Opens the files of a model: a checkpoint, or a folder, every byte of which is compared with what was written.

    Raises:
        CheckpointError: a file of a folder is damaged, cut or missing.
    """
    if is_folder(path):
        return open_folder(path)
    name = os.fspath(path)
    held = {Path(name).name: HeldFile(name)} if os.path.isfile(name) else {}
    return ModelFiles(name, held)


# Folders that commands of fairseq are about to load by their names, by the paths of their checkpoints.
_begun: dict[str, ModelFiles] = {}


def begin(checkpoint: str) -> None:
    """Opens the folder whose checkpoint this is, if it is one, before anything of it is read by its name.

    Raises:
        CheckpointError: the folder is damaged.
    """
    place = Path(checkpoint)
    if checkpoint not in _begun and place.name == CHECKPOINT and is_folder(place.parent):
        _begun[checkpoint] = open_folder(place.parent)


def taken(checkpoint: str) -> ModelFiles:
    """The files of a checkpoint that is about to be loaded: those of :func:`begin`, if it is in a folder.

    Raises:
        CheckpointError: the folder is damaged.
    """
    begin(checkpoint)
    return _begun.pop(checkpoint, None) or open_model(checkpoint)


def load_stored(checkpoint: str, model: nn.Module) -> None:
    """Has a model that fairseq is about to load from the checkpoint of a folder use what is mapped there.

    fairseq reads the file into memory. Tensors that the mapped file has under the same name take their place, and the
    packed weights stand for them.

    Raises:
        CheckpointError: the folder is damaged, or was replaced since :func:`begin`.
    """
    files = taken(checkpoint)
    if files.folder is None:
        return
    state = checked_model(checkpoint, files.file) or {}

    def exchange(tensors: dict[str, Tensor]) -> None:
        for name, mine in state["model"].items():
            read = tensors.get(name)
            if read is None or read.dtype is not mine.dtype or read.shape != mine.shape:
                continue
            if torch.equal(read, mine):  # the model brings some into a form of its own
                tensors[name] = mine
        files.check()
        files.attach(model)

    take_tensors(model, exchange)


def checkpoints(arguments: Sequence[str], precision: bool = False) -> list[str]:
    """The arguments of a command, with the checkpoints of packed folders in place of these behind ``--path``.

    Args:
        precision: the command knows ``--int8`` and ``--bf16``: the folder's is added where none is said.

    Raises:
        CheckpointError: a folder is damaged.
    """
    arguments_made, kinds = list(arguments), set[str]()
    for number, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        behind = name == "--path" and not equals and number + 1 < len(arguments)
        if name != "--path" or not (equals or behind):
            continue
        paths = (arguments[number + 1] if behind else value).split(os.pathsep)
        for place, path in enumerate(paths):
            if is_folder(path):
                files = open_folder(path)
                paths[place] = files.checkpoint
                _begun[files.checkpoint] = files
                kinds.add(files.kind or "fp32")
        joined = os.pathsep.join(paths)
        arguments_made[number + behind] = joined if behind else f"--path={joined}"
    said = any(word.split("=")[0] in ("--int8", "--bf16", "--fp16") for word in arguments)
    if precision and not said:
        arguments_made += [f"--{kind}" for kind in kinds - {"fp32"}]
    return arguments_made


def is_folder(path: str | os.PathLike[str]) -> bool:
    return Path(path, ABOUT).is_file()


def open_folder(path: str | os.PathLike[str]) -> ModelFiles:
    """Opens a folder, after every byte in it was compared with what was written.

    All files are opened from one handle of the folder before any is compared. Files that nobody has written to since
    they were compared are not read again; the file of stamps says so.

    Raises:
        CheckpointError: a file is damaged, cut or missing.
    """
    folder = Path(path)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _open(folder, handle)
    finally:
        os.close(handle)


@contextmanager
def _naming(path: Path, folder: Path) -> Iterator[None]:
    """Names the file that an error within is about.

    Raises:
        CheckpointError: in place of what the system, PyTorch or a check says.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        raise _damaged(path, folder, error) from None


def _open(folder: Path, handle: int) -> ModelFiles:
    with _naming(folder / ABOUT, folder):
        first = HeldFile(folder / ABOUT, handle)
        about = Contents.of(_read(first))
    held = {ABOUT: first}
    for name in about.files:
        with _naming(folder / name, folder):
            held[name] = HeldFile(folder / name, handle)
    known, stamps = _compared(folder, handle), {}
    for name, wanted in about.files.items():
        file = held[name]
        stamps[name] = [wanted, *file.stamp]
        file.compare = partial(_is, wanted)
        with _naming(folder / name, folder):
            sound(known.get(name) == stamps[name] or _is(wanted, file), OTHER)
    if known != stamps:
        _keep(handle, stamps)
    stored = None
    if about.layout is not None:
        with _naming(folder / WEIGHTS, folder):
            stored = _stored(folder, about, held[WEIGHTS])
    return ModelFiles(str(folder / CHECKPOINT), held, about.kind, stored)


def _is(wanted: str, file: HeldFile) -> bool:
    """Tells whether a file has that digest."""
    return digest(file) == wanted


MOST_BYTES = 1 << 26  # of a file of JSON


def _read(file: HeldFile) -> bytes:
    sound(file.size <= MOST_BYTES, "it is too large")
    return os.pread(file.handle, file.size, 0)


def _compared(folder: Path, handle: int) -> Mapping[str, Any]:
    """Reads what :func:`_keep` wrote; nothing if there is no such file or it cannot be read."""
    try:
        return parsed(_read(HeldFile(folder / COMPARED, handle)))
    except (OSError, ValueError):
        return {}


def _keep(handle: int, stamps: Mapping[str, Sequence[Any]]) -> None:
    """Writes digests and stamps of files, if all have settled and the folder can be written to."""
    last = max(time for one in stamps.values() for time in one[-2:])
    if time_ns() - last < SETTLED:
        return
    made = f"{COMPARED}.{os.getpid()}"  # other processes may write it too
    text = json.dumps(stamps, indent=1) + "\n"
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(OSError):
        with open(os.open(made, how, 0o666, dir_fd=handle), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(made, COMPARED, src_dir_fd=handle, dst_dir_fd=handle)


def _stored(folder: Path, about: Contents, file: HeldFile) -> Stored | None:
    library = kernels()
    if library is None or about.layout != Layout.of(library):
        here = "none" if library is None else INSTRUCTIONS[library.aggdec_instructions()]
        logger.warning(
            "%s was packed for the kernels %s, and these are %s: its weights are packed anew, which takes time and "
            "memory; pack it on this machine",
            *(folder, printable(about.instructions), here),
        )
        return None
    assert about.layout is not None
    tensors = read_tensors(mapped(file))
    sound(all(map(is_part, tensors)), "a tensor is no part of a product")
    return Stored(str(folder / CHECKPOINT), about.layout, tensors)


def _damaged(path: Path, folder: Path, error: BaseException) -> CheckpointError:
    reason = printable(str(error).split("\n")[0][:120] or type(error).__name__)
    return CheckpointError(
        f"{path} is damaged ({reason}): write {folder} again with `aggdec pack`."
    )
