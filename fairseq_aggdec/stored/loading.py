"""Loads checkpoints with every PyTorch and fairseq that the package runs with; no code of a file runs.

Nothing here changes fairseq; :mod:`fairseq_aggdec.startup.known_fairseq` tells what it has to be. PyTorch >= 2.6 loads
checkpoints in its weights-only mode, which refuses some kinds of harmless object that ``fairseq-train`` writes or
wrote; :func:`register_safe_globals` declares exactly those as data. Everything else stays refused, and
:func:`check_checkpoint` says so in one sentence before fairseq's own loader would. The options of a file are checked
there too: see :mod:`fairseq_aggdec.stored.options`.
"""

import os
import pickle
import re
import sys
import zipfile
from collections.abc import Mapping
from typing import Any

import torch

from fairseq_aggdec.stored.data import safe_globals
from fairseq_aggdec.stored.held_files import HeldFile
from fairseq_aggdec.stored.nodes import configuration
from fairseq_aggdec.stored.options import CheckpointError as CheckpointError
from fairseq_aggdec.stored.options import check_names, check_options
from fairseq_aggdec.stored.pickled import check_pickled

# Bytes of a checkpoint from which on it is mapped, which halves the memory that loading takes. Whoever then writes into
# the file ends the processes that have mapped it; files that people save to while they work with them are smaller.
MAPPED_FROM = 2**28
# Beside a checkpoint it says that packed weights of its numbers are there: such a file is mapped, so that the system
# can tell whether somebody changed them.
ABOUT = "packed.json"
# Entries without which fairseq loads nothing -> those that stood for them in old files.
_ENTRIES = {
    "optimizer_history": ("best_loss", "optimizer"),
    "extra_state": ("epoch", "batch_offset", "val_loss"),
}
# What they hold in a checkpoint that nobody has trained.
NEW_ENTRIES: dict[str, Any] = {
    "optimizer_history": [
        {"criterion_name": None, "optimizer_name": None, "lr_scheduler_state": {}, "num_updates": 0}
    ],
    "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
}


def register_safe_globals() -> None:
    """Let weights-only loading accept the plain data that ``fairseq-train`` writes beside tensors.

    Call it before a checkpoint is loaded. Calling it again changes nothing. A name that the user has listed stays as
    the user has it: of two things under one name PyTorch would take either.
    """
    ours, listed = safe_globals(), torch.serialization.get_safe_globals()
    others = [one for one in listed if one not in ours]
    taken = {_name_of(one) for one in others}
    wanted = [one for one in ours if one[1] not in taken]
    if {*others, *wanted} != {*listed}:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([*others, *wanted])


def _name_of(listed: Any) -> str:
    return listed[1] if isinstance(listed, tuple) else f"{listed.__module__}.{listed.__qualname__}"


def check_checkpoint(path: str, file: HeldFile | None = None) -> Mapping[Any, Any] | None:
    """The state in a checkpoint as it is stored, its tensors mapped and not read, if it holds data only.

    None where there is no such file, which fairseq itself names well.

    Args:
        path: of the checkpoint.
        file: what was opened under that name; None: it is opened.

    Raises:
        CheckpointError: `path` hides code, in what is pickled or in its options, or is no readable checkpoint.
    """
    if file is None and not os.path.isfile(path):
        return None
    try:
        state, names = read_stored(file or HeldFile(path))
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused: {error}.") from None
    except OSError as error:
        if error.filename is None:  # not the file: what stands in it led nowhere
            raise unreadable(path, error) from None
        raise  # unreadable for the user: the system's message names the file
    except Exception as error:  # other kinds of file make the loader raise nearly anything
        raise unreadable(path, error) from None
    if names:
        raise CheckpointError(
            f"{path} is refused: besides tensors and options it names {', '.join(sorted(names))}, "
            f"which would run as code when loaded; `aggdec upgrade-checkpoint {path} NEW.pt` writes a copy without it."
        )
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} was not written by fairseq: it holds no model.")
    check_options(state, path)
    return state


def checked_model(path: str, file: HeldFile | None = None) -> Mapping[Any, Any] | None:
    """Checks, as :func:`check_checkpoint` does, a file that has a model and the entries without which fairseq loads
    nothing."""
    state = check_checkpoint(path, file)
    if state is None:
        return None
    if not isinstance(state.get("model"), Mapping):
        raise CheckpointError(f"{path} was not written by fairseq: it holds no model.")
    missing = missing_entry(state)
    if missing is not None:
        raise CheckpointError(
            f"{path} has no entry {missing!r}, without which fairseq loads nothing; "
            f"`aggdec upgrade-checkpoint {path} NEW.pt` writes a copy with it."
        )
    return state


def missing_entry(state: Mapping[Any, Any]) -> str | None:
    """Names what fairseq looks for in a checkpoint, in the form of either age, and does not find."""
    if state.get("cfg") is None and state.get("args") is None:
        return "cfg"
    for entry, older in _ENTRIES.items():
        if entry not in state and not all(name in state for name in older):
            return entry
    return None


def unreadable(path: str, error: BaseException) -> CheckpointError:
    """The error for a file that the loader could not read, without the loader's advice to trust it."""
    text = str(error).strip()
    match = re.search(r"WeightsUnpickler error: ([^\n]*)", text)
    reason = match[1] if match else text.split("\n")[0]
    if re.search(r"weights.only|trust", reason, re.IGNORECASE):
        reason = ""
    reason = reason.strip().split(". ")[0].rstrip(".")[:160]
    if not reason or reason.isdigit():  # of a KeyError
        reason = type(error).__name__
    return CheckpointError(
        f"{path} cannot be read as a checkpoint: it is damaged or another kind of file ({reason}). "
        "Copy or download it again."
    )


def load_checkpoint(
    path: str, arg_overrides: dict[str, Any] | None = None, file: HeldFile | None = None
) -> dict[str, Any]:
    """The state of a checkpoint on the CPU, after :func:`checked_model`, as fairseq loads it; errors name the file.

    The tensors of a large file are those of the mapped file, which takes memory where it is read.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    if file is None and not PathManager.exists(path):
        raise FileNotFoundError(f"Checkpoint {path} does not exist.")
    stored = checked_model(path, file)
    if stored is not None and stored.get("args") is not None:
        check_names(stored, path)
    try:
        if stored is None:
            return checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
        return _as_fairseq_loads({**stored}, arg_overrides or {})
    except (
        AttributeError,
        EOFError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
    ) as error:
        raise unreadable(path, error) from None


def _as_fairseq_loads(state: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a file that was read, as ``load_checkpoint_to_cpu`` does."""
    from fairseq import checkpoint_utils

    if state.get("args") is not None:
        vars(state["args"]).update(overrides)
    if state.get("cfg") is not None:
        state["cfg"] = configuration(state["cfg"])
        checkpoint_utils.overwrite_args_by_name(state["cfg"], overrides)
    upgraded: dict[str, Any] = checkpoint_utils._upgrade_state_dict(state)
    return upgraded


def read_stored(file: HeldFile) -> tuple[Any, list[str]]:
    """Reads what a file holds and the names that weights-only loading refuses; with such names, nothing is read."""
    register_safe_globals()
    path = file.place
    check_pickled(path)
    if not zipfile.is_zipfile(path):  # written by PyTorch < 1.6, or a bare pickle
        return _read_old_format(path)
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    classes = {name: _configuration_class(name) for name in names}
    torch.serialization.add_safe_globals([one for one in classes.values() if one is not None])
    if foreign := [name for name, one in classes.items() if one is None]:
        return None, foreign
    if not maps(file):
        check_sums(file)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=maps(file)), []


def check_sums(file: HeldFile) -> None:
    """Compares every record of a checkpoint with its CRC-32, which PyTorch writes and never reads.

    It takes 0.6 s a GB, so files that are mapped are compared by ``aggdec doctor`` only. A folder of ``aggdec pack``
    has sums of its own. A file without sums, or of PyTorch < 1.6, passes.

    Raises:
        zipfile.BadZipFile: a record is damaged.
    """
    if not zipfile.is_zipfile(file.place):
        return
    with zipfile.ZipFile(file.place) as archive:
        records = archive.infolist()
        if sum(record.file_size for record in records) > file.size:
            raise zipfile.BadZipFile("its records are larger than the file")
        for record in records:
            if record.CRC and record.compress_type == zipfile.ZIP_STORED:
                with archive.open(record) as stream:
                    while stream.read(1 << 20):
                        pass


def maps(file: HeldFile) -> bool:
    """Tells whether a checkpoint is mapped: a large one, or one with packed weights beside it."""
    return file.size >= MAPPED_FROM or file.path.with_name(ABOUT).is_file()


def _read_old_format(path: str) -> tuple[Any, list[str]]:
    while True:
        try:
            return torch.load(path, map_location="cpu", weights_only=True), []
        except pickle.UnpicklingError as error:
            named = re.search(r"GLOBAL ([\w.]+)", str(error))
            if named is None:
                raise
            configuration = _configuration_class(named[1])
            if configuration is None:
                return None, [named[1]]
            torch.serialization.add_safe_globals([configuration])


def _configuration_class(name: str) -> type | None:
    """fairseq's class of options of that name, if it is loaded already: a dataclass of Python, so it stores values."""
    from fairseq.dataclass import FairseqDataclass

    module, _, name = name.rpartition(".")
    named = getattr(sys.modules.get(module), name, None) if module.startswith("fairseq.") else None
    is_data = isinstance(named, type) and issubclass(named, FairseqDataclass)
    return named if is_data and named.__module__ == module else None
