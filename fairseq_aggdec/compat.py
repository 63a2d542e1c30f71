"""Differences between versions of PyTorch and fairseq: checked or adapted once, at import.

Nothing here changes fairseq. PyTorch >= 2.6 loads checkpoints in its weights-only mode, which refuses some kinds of
harmless object that ``fairseq-train`` writes or wrote; :func:`register_safe_globals` declares exactly those as data.
Everything else stays refused, and :func:`check_checkpoint` says so in one sentence before fairseq's own loader would.
The options of a file are checked there too: see :mod:`fairseq_aggdec.stored_options`.
"""

import os
import pickle
import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_aggdec.stored_data import safe_globals
from fairseq_aggdec.stored_options import CheckpointError as CheckpointError
from fairseq_aggdec.stored_options import check_names, check_options

SUPPORTED_FAIRSEQ = "0.12.3.1"
_HOW_TO_INSTALL = (
    f"fairseq_aggdec needs fairseq-fixed=={SUPPORTED_FAIRSEQ}, which is imported as `fairseq`: "
    "install it into an environment of its own (scripts/setup.sh makes one)."
)
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


def check_fairseq() -> None:
    """Raise ``ImportError``, with a sentence that helps, unless `fairseq` is the supported build.

    Several distributions share the import name `fairseq`; an older one fails late and obscurely.
    """
    try:
        import fairseq
    except (ImportError, ValueError) as error:  # ValueError: fairseq 0.12.2 under Python >= 3.11
        raise ImportError(f"`import fairseq` failed ({error}). {_HOW_TO_INSTALL}") from error
    version = getattr(fairseq, "__version__", "unknown")
    if version != SUPPORTED_FAIRSEQ:
        place = os.path.dirname(getattr(fairseq, "__file__", None) or "an unknown place")
        raise ImportError(f"The fairseq found in {place} is version {version}. {_HOW_TO_INSTALL}")


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


def check_checkpoint(path: str) -> Mapping[Any, Any] | None:
    """The state in a checkpoint as it is stored, its tensors mapped and not read, if it holds data only.

    None where there is no such file, which fairseq itself names well.

    Raises:
        CheckpointError: `path` hides code, in what is pickled or in its options, or is no readable checkpoint.
    """
    if not os.path.isfile(path):
        return None
    try:
        state, names = read_stored(path)
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


def checked_model(path: str) -> Mapping[Any, Any] | None:
    """Checks, as :func:`check_checkpoint` does, a file that has a model and the entries without which fairseq loads
    nothing."""
    state = check_checkpoint(path)
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
    if isinstance(error, UnicodeEncodeError):  # PyTorch wants names in UTF-8
        return CheckpointError(f"{path!a} is no name in UTF-8 in this locale: set PYTHONUTF8=1")
    text = str(error).strip()
    found = re.search(r"WeightsUnpickler error: ([^\n]*)", text)
    reason = found[1] if found else text.split("\n")[0]
    if re.search(r"weights.only|trust", reason, re.IGNORECASE):
        reason = ""
    reason = reason.strip().split(". ")[0].rstrip(".")[:160]
    if not reason or reason.isdigit():  # of a KeyError
        reason = type(error).__name__
    return CheckpointError(
        f"{path} cannot be read as a checkpoint: it is damaged or another kind of file ({reason}). "
        "Copy or download it again."
    )


def load_checkpoint(path: str, arg_overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state of a checkpoint on the CPU, after :func:`checked_model`, as fairseq loads it; errors name the file.

    The tensors of a large file are those of the mapped file, which takes memory where it is read.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    if not PathManager.exists(path):
        raise FileNotFoundError(f"Checkpoint {path} does not exist.")
    stored = checked_model(path)
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
    from omegaconf import OmegaConf

    if state.get("args") is not None:
        vars(state["args"]).update(overrides)
    if state.get("cfg") is not None:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        checkpoint_utils.overwrite_args_by_name(state["cfg"], overrides)
    upgraded: dict[str, Any] = checkpoint_utils._upgrade_state_dict(state)
    return upgraded


def read_stored(path: str) -> tuple[Any, list[str]]:
    """Reads what a file holds and the names that weights-only loading refuses; with such names, nothing is read."""
    register_safe_globals()
    if not zipfile.is_zipfile(path):  # written by PyTorch < 1.6, or a bare pickle
        return _read_old_format(path)
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    found = {name: _configuration_class(name) for name in names}
    torch.serialization.add_safe_globals([one for one in found.values() if one is not None])
    if foreign := [name for name, one in found.items() if one is None]:
        return None, foreign
    mapped = os.path.getsize(path) >= MAPPED_FROM or Path(path).with_name(ABOUT).is_file()
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped), []


def _read_old_format(path: str) -> tuple[Any, list[str]]:
    while True:
        try:
            return torch.load(path, map_location="cpu", weights_only=True), []
        except pickle.UnpicklingError as error:
            named = re.search(r"GLOBAL ([\w.]+)", str(error))
            if named is None:
                raise
            found = _configuration_class(named[1])
            if found is None:
                return None, [named[1]]
            torch.serialization.add_safe_globals([found])


def _configuration_class(name: str) -> type | None:
    """fairseq's class of options of that name, if it is loaded already: a dataclass of Python, so it stores values."""
    from fairseq.dataclass import FairseqDataclass

    module, _, name = name.rpartition(".")
    found = getattr(sys.modules.get(module), name, None) if module.startswith("fairseq.") else None
    is_data = isinstance(found, type) and issubclass(found, FairseqDataclass)
    return found if is_data and found.__module__ == module else None
