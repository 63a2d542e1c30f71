"""Proofs of kernels: which were right on this card, and faster than PyTorch's operators there.

A kernel runs when it has a proof, or when ``FAIRSEQ_AGGDEC_KERNELS`` names it. Until then PyTorch's operators do its
work. :mod:`~fairseq_aggdec.kernels.gpu.trying` makes proofs. They are kept in a file of the cache folder for each card,
driver and PyTorch; a proof counts while the source of the kernel and of what launches it is the same.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairseq_aggdec.kernels.gpu import nvrtc

COMMAND = "aggdec doctor --try-kernels"
UNTRIED = f"it waits for a proof on this card: {COMMAND}"
PROVEN = "right and faster"
SOURCES = Path(__file__).parent  # of all kernels, and what launches them


class Card(NamedTuple):
    """Card, driver and PyTorch that a proof is for.

    Attributes:
        name: of the GPU, with its compute capability.
        driver: version of NVIDIA's driver.
        pytorch: version of PyTorch, with its CUDA.
    """

    name: str
    driver: str
    pytorch: str


class Finding(NamedTuple):
    """Result of a trial.

    Attributes:
        source: sum of its source, see :func:`source_of`.
        verdict: ``PROVEN``, or why PyTorch's operators go on.
        milliseconds: for numbers of rows, of the kernel and of the operators.
    """

    source: str
    verdict: str
    milliseconds: dict[str, tuple[float, float]]


def card_of(device: torch.device) -> Card:
    """The card of a device, with what runs it."""
    properties = torch.cuda.get_device_properties(device)
    name = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
    return Card(name, driver_version(), f"{torch.__version__}, CUDA {torch.version.cuda}")


@functools.cache
def driver_version() -> str:
    """Version of NVIDIA's driver; without NVIDIA's management library only the CUDA that the driver is for."""
    text, number = ctypes.create_string_buffer(80), ctypes.c_int()
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if not library.nvmlInit_v2() and not library.nvmlSystemGetDriverVersion(text, len(text)):
            return text.value.decode()
    with suppress(OSError, AttributeError):
        if not ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    return "unknown"


@functools.cache
def source_of(agree: Callable[..., Any]) -> str:
    """Sum of all that decides what kernels do: their sources, what launches them, and the module of the probe."""
    files = [path for path in sorted(SOURCES.rglob("*")) if path.suffix in (".cu", ".h", ".py")]
    digest = hashlib.sha256()
    for path in (*files, Path(inspect.getsourcefile(agree) or "")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def key_of(names: tuple[str, ...], dtype: tuple[torch.dtype, ...]) -> str:
    """Name of a proof: ``product float16``."""
    return " ".join([names[0], *(str(one).removeprefix("torch.") for one in dtype)])


def file_of(card: Card) -> Path | None:
    """The file of a card's proofs; None: nothing can be kept here."""
    with suppress(OSError):
        if cache := nvrtc.folder():
            return (
                cache / f"proofs-{hashlib.sha256(repr(tuple(card)).encode()).hexdigest()[:16]}.json"
            )
    return None


def read(card: Card) -> dict[str, Finding]:
    """Everything that was found on a card, by :func:`key_of`; what cannot be read counts for nothing."""
    path = file_of(card)
    try:
        kept = json.loads(path.read_text(encoding="utf-8")) if path else {}
        if tuple(kept["card"]) != card:
            return {}
        findings = {key: Finding(*one) for key, one in kept["kernels"].items()}
        texts = [text for one in findings.values() for text in one[:2]]
        return findings if all(isinstance(text, str) for text in texts) else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write(card: Card, key: str, finding: Finding) -> bool:
    """Adds a finding to those of a card; False: nothing can be kept here."""
    path = file_of(card)
    if path is None:
        return False
    kept = {"card": card, "kernels": {**read(card), key: finding}}
    made = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        made.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        made.replace(path)
        return True
    return False


def against(
    device: torch.device,
    agree: Callable[..., Any],
    names: tuple[str, ...],
    dtype: tuple[torch.dtype, ...],
) -> str | None:
    """Why kernels have no proof on a device; None: they have one."""
    finding = read(card_of(device)).get(key_of(names, dtype))
    if finding is None or finding.source != source_of(agree):
        return UNTRIED
    return None if finding.verdict == PROVEN else finding.verdict
