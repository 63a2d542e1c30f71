"""The kernels of ``source`` as operators of PyTorch, which change some of their arguments and return nothing.

PyTorch's dispatcher gives a GPU's tensors to :func:`_launch`. Tests register the same source, compiled as C++, for
tensors of a CPU.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu.arguments import PRECISIONS as PRECISIONS
from fairseq_aggdec.kernels.gpu.arguments import Signature
from fairseq_aggdec.kernels.gpu.nvrtc import Module, compiling
from fairseq_aggdec.kernels.switches import GPU, VARIABLE, switches

logger = logging.getLogger(__name__)

NAMESPACE = "fairseq_aggdec"
_JUDGEMENT = """(
    int blocks, int width, int room, int parts, int types, int prefix, int precision, int pad, int unk, int eos,
    float unk_penalty, int free_end, int ngram, int sure, int beta, float tolerance, Tensor owners, Tensor forced,
    Tensor(a!) logits, Tensor? shown, Tensor outputs, Tensor? length, Tensor(b!) seen, Tensor(c!)? hidden,
    Tensor(d!) numbers, Tensor(e!) tokens, Tensor(f!) scores, Tensor(g!) emitted, Tensor(h!) drafted,
    Tensor(i!) stood, Tensor(j!) flags, Tensor? features, Tensor(k!) kept, int units) -> ()"""
_CANDIDATES = """(
    int blocks, int kept, int parts, int types, int precision, int width, int prefix, int pad, int unk, int eos,
    float unk_penalty, Tensor? clock, Tensor? depths, Tensor? forced, Tensor logits, Tensor(a!) sums, Tensor(b!) keys,
    Tensor(c!) values, Tensor(d!) tokens, Tensor(e!) ends) -> ()"""
_CHAIN = """(
    int blocks, int size, int most, int channels, int precision, Tensor last, Tensor best, Tensor heard, Tensor slots,
    Tensor(a!) told, Tensor? features, Tensor? written, Tensor? weight, Tensor? bias, Tensor(b!)? block) -> ()"""
_ATTENTION = """(
    int blocks, int precision, int width, int heads, int size, int keys, int query_step, int row_step, int key_step,
    int value_step, int mask_row, int mask_slot, int words, int span, float scale, Tensor queries, Tensor(a!) kept,
    Tensor? at, Tensor? last, Tensor? bits, Tensor? mask, Tensor(b!) out) -> ()"""
_BEAM_STEP = """(
    int blocks, int width, int each, int eos, int pad, int prefix, int length, int sights, int end, int bytes,
    int room, int parts, int types, int precision, int unk, float unk_penalty, Tensor? logits, Tensor? found,
    Tensor? keys, Tensor clock, Tensor? values, Tensor? tokens, Tensor? ends, Tensor forced, Tensor? lengths,
    Tensor(a!) depths, Tensor(b!) places, Tensor(c!) last, Tensor(d!) sums, Tensor(e!) rounds, Tensor(f!) count,
    Tensor(g!) flags, Tensor(h!) words, Tensor(i!) parents, Tensor(j!) totals, Tensor(k!) nodes,
    Tensor(l!) finished, Tensor(m!) sight, Tensor(n!)? written) -> ()"""
# The parameters of a kernel in the order of its struct in the source; the first is the number of its blocks.
SCHEMAS = {
    "begin": """(
        int blocks, int width, int room, int ragged, int waits, Tensor numbers, Tensor tokens, Tensor owners,
        Tensor? block, Tensor(a!) shown, Tensor(b!) outputs, Tensor(c!) length) -> ()""",
    "slots": """(
        int blocks, int columns, int room, int shift, int masks, int size, int causal, int pad, Tensor numbers,
        Tensor tokens, Tensor owners, Tensor(a!) given, Tensor(b!) places, Tensor(c!) seen, Tensor(d!) masked,
        Tensor(e!) picked, Tensor(f!) last) -> ()""",
    "embedding": """(
        int blocks, int channels, int precision, int step, float scale, Tensor tokens, Tensor weight, Tensor at,
        Tensor? table, Tensor? masked, Tensor? slot, int width, int sources, int row_step, int mask_step,
        Tensor? queries, Tensor? memory, Tensor? mask, Tensor(a!) out) -> ()""",
    "sources": """(
        int blocks, int precision, int channels, int length, int pad, float scale, Tensor tokens, Tensor weight,
        Tensor? table, Tensor(a!) embedded, Tensor(b!) x, Tensor(c!) mask, Tensor(d!) hidden,
        Tensor(e!) counts) -> ()""",
    "hear": _CHAIN,
    "follow": _CHAIN,
    "copy_block": """(
        int blocks, int size, int room, int places, int nobody, int match, Tensor numbers, Tensor tokens,
        Tensor owners, Tensor texts, Tensor(a!) runs, Tensor(b!) stands, Tensor(c!) block) -> ()""",
    "ban": _JUDGEMENT,
    "look": _JUDGEMENT,
    "judge": _JUDGEMENT,
    "largest": "(int blocks, int types, int precision, Tensor logits, Tensor(a!) tokens) -> ()",
    "leaders": _CANDIDATES,
    "best": _CANDIDATES,
    "beam_step": _BEAM_STEP,
    "best_step": _BEAM_STEP,
    "attend": _ATTENTION,
    "attend_slots": _ATTENTION,
    "cross_attend": """(
        int blocks, int precision, int slots, int heads, int size, int width, int keys, int row_step, int key_step,
        int value_step, int mask_row, float eps, float share, float scale, Tensor x, Tensor weight, Tensor? bias,
        Tensor gain, Tensor shift, Tensor memory, Tensor? mask, Tensor(a!)? kept, Tensor(b!) out) -> ()""",
    "logits": """(
        int blocks, int precision, int slots, int channels, int types, int parts, int each, int pad, int unk, int eos,
        float eps, float share, Tensor x, Tensor weight, Tensor? bias, Tensor gain, Tensor shift, Tensor(a!) kept,
        Tensor(b!) y, Tensor(c!)? seen) -> ()""",
    "product": """(
        int blocks, int precision, int rows, int inputs, int outputs, int across, int tiles, int high, int relu,
        int twice, float eps, float share, Tensor x, Tensor weight, Tensor? bias, Tensor? gain, Tensor? shift,
        Tensor? residual, Tensor(a!)? kept, Tensor(b!) y) -> ()""",
    "layer_norm": """(
        int blocks, int precision, int channels, float eps, Tensor x, Tensor gain, Tensor shift,
        Tensor(a!) y) -> ()""",
}
SIGNATURES = {name: Signature(name, schema) for name, schema in SCHEMAS.items()}
# Threads of a block, powers of two, in whole warps. What reads a vocabulary has more than what reads a row's numbers.
THREADS = {
    "begin": 64,
    "slots": 128,
    "embedding": 256,
    "sources": 256,
    "hear": 128,
    "follow": 512,
    "copy_block": 256,
    "ban": 128,
    "look": 256,
    "judge": 128,
    "largest": 1024,
    "leaders": 256,
    "best": 32,
    "beam_step": 512,
    "best_step": 512,
    "attend": 128,
    "attend_slots": 128,
    "cross_attend": 256,
    "logits": 256,
    "product": 256,
    "layer_norm": 32,
}
# The file of a kernel.
SOURCES = dict.fromkeys(SCHEMAS, "bookkeeping") | {
    **dict.fromkeys(("embedding", "sources"), "embedding"),
    **dict.fromkeys(("hear", "follow"), "chain"),
    **dict.fromkeys(("attend", "attend_slots"), "attention"),
    "cross_attend": "cross",
    "logits": "logits",
    **dict.fromkeys(("ban", "look", "judge", "largest"), "vocabulary"),
    **dict.fromkeys(("leaders", "best", "beam_step", "best_step"), "beam"),
    **dict.fromkeys(("product", "layer_norm"), "products"),
}
# Files that are compiled for one precision at a time.
BY_PRECISION = {"attention", "chain", "cross", "embedding", "logits", "products"}
# Files with kernels of every loop.
EVERY_LOOP = (
    *("products", "vocabulary", "attention", "cross", "logits", "embedding"),
    "bookkeeping",
)
# Where there are few positions, several blocks read the logits of one: a block has PART logits at least, and there are
# BUSY blocks at most, which keep a GPU busy.
PART, BUSY = 2048, 264


def parts(positions: int, types: int) -> int:
    """Tells how many blocks read the logits of each position."""
    return max(1, min(-(-types // PART), BUSY // positions))


def operators() -> Any:
    """``torch.ops.fairseq_aggdec``: :data:`SCHEMAS`."""
    with _one_definition:
        return _defined()


# PyTorch takes the definition of an operator once; threads may ask for the first kernel at the same time.
_one_definition = threading.Lock()


@functools.cache
def _defined() -> Any:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for name, schema in SCHEMAS.items():
        library.define(f"{name}{schema}")
        library.impl(name, functools.partial(_launch, name), "CUDA")
    _kept.append(library)  # it takes its operators with it
    return torch.ops.fairseq_aggdec


_kept: list[torch.library.Library] = []


def _launch(name: str, *arguments: Any) -> None:
    signature, source = SIGNATURES[name], SOURCES[name]
    given = signature.read(arguments)
    if blocks := given[0]:
        device = next(value.device for value in given if isinstance(value, Tensor))
        precision = given[signature.precision or 0] if source in BY_PRECISION else None
        own = module(device, source, precision)
        own.launch(name, signature.words(given), blocks, THREADS[name])


@functools.cache
def module(device: torch.device, source: str, precision: int | None) -> Module:
    """The kernels of a source on a GPU, compiled for it, and for one precision or all.

    Raises:
        OSError, RuntimeError: they cannot be compiled or loaded there.
    """
    names = tuple(name for name in SCHEMAS if SOURCES[name] == source)
    return Module(device, source, names, *_options(source, precision))


def _options(source: str, precision: int | None) -> list[str]:
    return [f"-DPRECISION={precision}"] if source in BY_PRECISION else []


def compile_ahead(device: torch.device, dtype: torch.dtype) -> None:
    """Begins to compile what every loop on a GPU launches, side by side, for models in a precision."""
    if GPU not in switches().off and ready(device) and dtype in PRECISIONS:
        for source in EVERY_LOOP:
            compiling(device, source, *_options(source, PRECISIONS[dtype]))


def ready(device: torch.device) -> bool:
    """Tells whether a device is one for the kernels; a source is compiled when one of its kernels is first launched."""
    return device.type == "cuda"


Probe = Callable[..., bool | str]
# What tries kernels, before they are used -> their names. They are used together or not at all.
PROBES: dict[Probe, tuple[str, ...]] = {}


def tries(*names: str) -> Callable[[Probe], Probe]:
    """Marks a function that tries these kernels on a device (and, where they are compiled for one, in a precision), and
    says whether they give what PyTorch's operators give, or what the device lacks for them."""

    def mark(agree: Probe) -> Probe:
        PROBES[agree] = names
        return agree

    return mark


def usable(device: torch.device, agree: Probe, *dtype: torch.dtype) -> bool:
    """Tells whether the kernels run on a device; arguments as for :func:`against`."""
    return against(device, agree, *dtype) is None


def against(device: torch.device, agree: Probe, *dtype: torch.dtype) -> str | None:
    """Why PyTorch's operators run in place of the kernels, None where the kernels do.

    Args:
        device: any.
        agree: tries the kernels there, once.
        dtype: where they are compiled for one precision.
    """
    off = switches().off
    if off and (GPU in off or not off.isdisjoint(PROBES.get(agree, ()))):
        return f"{VARIABLE}={os.environ[VARIABLE]}"
    key = device, agree, *dtype
    if key not in _tried:
        _tried[key] = _against(device, agree, *dtype)
    return _tried[key]


_tried: dict[tuple[Any, ...], str | None] = {}
NO_MEMORY = "there was too little memory to try them"


def try_again(everything: bool = False) -> None:
    """Forgets what could not be tried for want of memory, which another batch may leave; or all that was tried."""
    for key in [key for key, found in list(_tried.items()) if everything or found == NO_MEMORY]:
        _tried.pop(key, None)


def _check_device(device: torch.device, agree: Probe, error: Exception) -> None:
    """A kernel that reads where it must not ends what PyTorch can do on the GPU: whoever goes on fails elsewhere."""
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError:
        names = PROBES.get(agree, (GPU,))
        text = f"a fused kernel ({', '.join(names)}) has failed on {device} ({error}): set"
        raise RuntimeError(f"{text} {VARIABLE}=no-{names[0]}, and start again") from error


def _against(device: torch.device, agree: Probe, *dtype: torch.dtype) -> str | None:
    names = ", ".join(PROBES.get(agree, ("fused kernels",)))
    try:
        if not ready(device):
            return "they are for a GPU"
        with torch.inference_mode():
            found = agree(device, *dtype)
        if found:
            return None if found is True else str(found)
    except torch.OutOfMemoryError:
        return NO_MEMORY
    except (OSError, RuntimeError) as error:
        _check_device(device, agree, error)
        # Said once of all kernels that end alike: without a compiler that is each of them.
        level = logging.INFO if str(error) in _tried.values() else logging.WARNING
        logger.log(level, "not used on %s, only slower: %s: %s", device, names, error)
        return str(error)
    logger.warning("%s differ from PyTorch's operators on %s: not used", names, device)
    return "they differ from PyTorch's operators"
