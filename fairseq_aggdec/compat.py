"""What depends on the versions of PyTorch and fairseq: checked or adapted once, at import.

Nothing here changes fairseq. PyTorch >= 2.6 loads checkpoints in its weights-only mode, which refuses two kinds of
harmless object that ``fairseq-train`` writes; :func:`register_safe_globals` declares exactly those as data.
Everything else stays refused, and :func:`check_checkpoint` says so in one sentence before fairseq's own loader would.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import os
import pickle
import re
from collections.abc import Mapping
from typing import Any

import numpy
import torch

logger = logging.getLogger(__name__)

SUPPORTED_FAIRSEQ = "0.12.3.1"
_HOW_TO_INSTALL = (
    f"fairseq_aggdec needs fairseq-fixed=={SUPPORTED_FAIRSEQ}, which is imported as `fairseq`: "
    "install it into an environment of its own (scripts/setup.sh makes one)."
)
_NUMBER_DTYPES = (
    *(f"{sign}Int{bits}DType" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    *(f"Float{bits}DType" for bits in (16, 32, 64)),
    "BoolDType",
)


class CheckpointError(RuntimeError):
    """A checkpoint file that must not, or cannot, be loaded. The message names the file."""


def check_fairseq() -> None:
    """Raise ``ImportError``, with a sentence that helps, unless `fairseq` is the supported build.

    Several distributions share the import name `fairseq`; an older one fails late and obscurely.
    """
    # One of its tasks tells everybody who imports it to install tensorboardX.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    try:
        import fairseq
    except (ImportError, ValueError) as error:  # ValueError: fairseq 0.12.2 under Python >= 3.11
        raise ImportError(f"`import fairseq` failed ({error}). {_HOW_TO_INSTALL}") from error
    version = getattr(fairseq, "__version__", "unknown")
    if version != SUPPORTED_FAIRSEQ:
        place = os.path.dirname(getattr(fairseq, "__file__", None) or "an unknown place")
        raise ImportError(f"The fairseq found in {place} is version {version}. {_HOW_TO_INSTALL}")
    _warn_about_second_fairseq()


def _warn_about_second_fairseq() -> None:
    try:
        other = importlib.metadata.version("fairseq")
    except importlib.metadata.PackageNotFoundError:
        return
    logger.warning(
        "The distributions `fairseq` %s and `fairseq-fixed` are both installed and own the same "
        "folder: removing or upgrading either one breaks the other. Better keep them apart, in "
        "separate environments.",
        other,
    )


def register_safe_globals() -> None:
    """Let weights-only loading accept the plain data that ``fairseq-train`` writes beside tensors.

    Call it before the first checkpoint is loaded. Calling it again changes nothing.
    """
    torch.serialization.add_safe_globals(_data_globals())


def _data_globals() -> list[Any]:
    """Options (``argparse.Namespace``) and NumPy numbers (counts of ``--eval-bleu``).

    None of them can run code.
    """
    multiarray = importlib.import_module("numpy._core.multiarray")
    allowed: list[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype]
    for builder in (multiarray._reconstruct, multiarray.scalar):
        # NumPy 2 writes `numpy._core`, NumPy 1 wrote `numpy.core`: either must load under both.
        for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
            allowed.append((builder, f"{module}.{builder.__name__}"))
    # Files never spell the classes of dtypes, but the loader asks for them when it fills one in.
    allowed += [getattr(numpy.dtypes, name) for name in _NUMBER_DTYPES]
    return allowed


def check_checkpoint(path: str) -> None:
    """Raise :class:`CheckpointError` if `path` hides code or is no readable checkpoint.

    Reads only the pickled structure, not the tensors. A missing file passes: fairseq itself names those well.
    """
    if not os.path.isfile(path):
        return
    try:
        names = _foreign_globals(path)
    except OSError as error:
        if error.filename is None:  # not the file: what stands in it led nowhere
            raise unreadable(path, error) from None
        raise  # unreadable for the user: the system's message names the file
    except Exception as error:  # other kinds of file make the loader raise nearly anything
        raise unreadable(path, error) from None
    if names:
        raise CheckpointError(
            f"{path} is refused: besides tensors and options it names {', '.join(sorted(names))}, "
            "which would run as code when loaded. Save it anew without them, in the program that wrote it."
        )


def unreadable(path: str, error: BaseException) -> CheckpointError:
    """The error for a file that the loader could not read, without the loader's advice to trust it."""
    text = str(error).strip()
    found = re.search(r"WeightsUnpickler error: ([^\n]*)", text)
    reason = found[1] if found else text.split("\n")[0]
    if re.search(r"weights.only|trust", reason, re.IGNORECASE):
        reason = ""
    reason = reason.strip().rstrip(".")[:160] or type(error).__name__
    return CheckpointError(
        f"{path} cannot be read as a checkpoint: it is damaged or another kind of file ({reason}). "
        "Copy or download it again."
    )


def check_checkpoints(paths: str | None) -> None:
    """:func:`check_checkpoint` for each file of a ``--path`` value such as ``a.pt:b.pt``.

    A task sees that value through a field ``model_paths: Optional[str] = II("common_eval.path")`` (without help text,
    so that fairseq makes no flag of it); ``setup_task`` runs before any model is loaded.
    """
    if paths:
        from fairseq.utils import split_paths

        for path in split_paths(paths):
            check_checkpoint(path)


def load_checkpoint(path: str, arg_overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state of the fairseq checkpoint `path` on the CPU, after :func:`check_checkpoint`.

    Raises ``FileNotFoundError`` or :class:`CheckpointError`, each naming the file.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    if not PathManager.exists(path):
        raise FileNotFoundError(f"Checkpoint {path} does not exist.")
    check_checkpoint(path)
    try:
        state: dict[str, Any] = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
    except KeyError as error:  # fairseq looks for its own entries before anything else
        raise CheckpointError(
            f"{path} was not written by fairseq: it has no entry {error}."
        ) from error
    except (
        AttributeError,
        EOFError,
        RuntimeError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
    ) as error:
        raise unreadable(path, error) from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), Mapping):
        raise CheckpointError(f"{path} was not written by fairseq: it holds no model.")
    return state


def _foreign_globals(path: str) -> list[str]:
    """Names in the checkpoint that weights-only loading refuses."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except ValueError:  # not a zip archive: written by PyTorch < 1.6, or a bare pickle
        return _foreign_global_of_old_format(path)


def _foreign_global_of_old_format(path: str) -> list[str]:
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named is None:
            raise
        return [named[1]]
    return []
