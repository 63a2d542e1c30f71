"""The kernels of ``source`` as operators of PyTorch, which change some of their arguments and return nothing.

PyTorch's dispatcher gives a GPU's tensors to :func:`_launch`. Tests register the same source, compiled as C++, for
tensors of a CPU.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fairseq_aggdec.kernels.gpu import proof
from fairseq_aggdec.kernels.gpu.arguments import PRECISIONS as PRECISIONS
from fairseq_aggdec.kernels.gpu.arguments import Signature
from fairseq_aggdec.kernels.gpu.arguments import aligned as aligned
from fairseq_aggdec.kernels.gpu.nvrtc import Module, compiling
from fairseq_aggdec.kernels.switches import DEPENDENT, GPU, GPU_KERNELS, VARIABLE, switches

logger = logging.getLogger(__name__)

NAMESPACE = "fairseq_aggdec"
_VERIFICATION = """(
    int blocks, int width, int room, int parts, int types, int prefix, int precision, int pad, int unk, int eos,
    float unk_penalty, int free_end, int ngram, int sure, int beta, float tolerance, Tensor owners, Tensor forced,
    Tensor(a!) logits, Tensor? window_tokens, Tensor outputs, Tensor? length, Tensor(b!) seen, Tensor(c!)? hidden,
    Tensor(d!) numbers, Tensor(e!) tokens, Tensor(f!) scores, Tensor(g!) emitted, Tensor(h!) drafted,
    Tensor(i!) stood, Tensor(j!) flags, Tensor? features, Tensor(k!) kept, int units) -> ()"""
_CANDIDATES = """(
    int blocks, int kept, int parts, int types, int precision, int width, int prefix, int pad, int unk, int eos,
    float unk_penalty, Tensor? clock, Tensor? depths, Tensor? forced, Tensor logits, Tensor(a!) sums, Tensor(b!) keys,
    Tensor(c!) values, Tensor(d!) tokens, Tensor(e!) ends) -> ()"""
_CHAIN = """(
    int blocks, int size, int most, int channels, int precision, Tensor last, Tensor best, Tensor heard, Tensor slots,
    Tensor(a!) chained, Tensor? features, Tensor? written, Tensor? weight, Tensor? bias, Tensor(b!)? block) -> ()"""
_ATTENTION = """(
    int blocks, int precision, int width, int heads, int size, int keys, int query_step, int row_step, int key_step,
    int value_step, int mask_row, int mask_slot, int words, int span, float scale, Tensor queries, Tensor(a!) kept,
    Tensor? at, Tensor? last, Tensor? bits, Tensor? mask, Tensor(b!) out) -> ()"""
_BEAM_STEP = """(
    int blocks, int width, int each, int eos, int pad, int prefix, int length, int visibilities, int end, int bytes,
    int room, int parts, int types, int precision, int unk, float unk_penalty, Tensor? logits,
    Tensor? exponentials, Tensor? keys, Tensor clock, Tensor? values, Tensor? tokens, Tensor? ends, Tensor forced,
    Tensor? lengths, Tensor(a!) depths, Tensor(b!) places, Tensor(c!) last, Tensor(d!) sums, Tensor(e!) rounds,
    Tensor(f!) count, Tensor(g!) flags, Tensor(h!) words, Tensor(i!) parents, Tensor(j!) totals, Tensor(k!) nodes,
    Tensor(l!) finished, Tensor(m!) visibility, Tensor(n!)? written) -> ()"""
# The parameters of a kernel in the order of its struct in the source; the first is the number of its blocks.
SCHEMAS = {
    "begin": """(
        int blocks, int width, int room, int ragged, int waits, Tensor numbers, Tensor tokens, Tensor owners,
        Tensor? block, Tensor(a!) window_tokens, Tensor(b!) outputs, Tensor(c!) length) -> ()""",
    "slots": """(
        int blocks, int columns, int room, int shift, int masks, int size, int causal, int pad, Tensor numbers,
        Tensor tokens, Tensor owners, Tensor(a!) window_tokens, Tensor(b!) places, Tensor(c!) seen,
        Tensor(d!) masked, Tensor(e!) picked, Tensor(f!) last) -> ()""",
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
    "ban": _VERIFICATION,
    "look": _VERIFICATION,
    "verify": _VERIFICATION,
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
    "verify": 128,
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
    **dict.fromkeys(("ban", "look", "verify", "largest"), "vocabulary"),
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
# Where there are few positions, several blocks read the logits of one: a block has PART logits at least, and each
# processor of the GPU has BUSY blocks at most.
PART, BUSY = 2048, 2


@functools.cache
def processors(device: torch.device) -> int:
    """Number of a GPU's processors (SMs)."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def parts(positions: int, types: int, device: torch.device) -> int:
    """Tells how many blocks read the logits of each position."""
    return max(1, min(-(-types // PART), BUSY * processors(device) // positions))


def ops() -> Any:
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
    values = signature.read(arguments)
    if blocks := values[0]:
        device = next(value.device for value in values if isinstance(value, Tensor))
        precision = values[signature.precision or 0] if source in BY_PRECISION else None
        compiled = module(device, source, precision)
        compiled.launch(name, signature.words(values), blocks, THREADS[name])


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
    """Begins to compile what every loop on a GPU launches, side by side, for models in a precision; the log tells once
    which kernels run."""
    if GPU in switches().off or lacking(device) or dtype not in PRECISIONS:
        return
    allowed = running(device, dtype)
    for source in EVERY_LOOP:
        if any(SOURCES.get(name) == source for name in allowed):
            compiling(device, source, *_options(source, PRECISIONS[dtype]))
    _say(device, describe(allowed))


def running(device: torch.device, dtype: torch.dtype) -> set[str]:
    """Names of the kernels that are switched on for models in a precision."""
    names_running = set[str]()
    for agree, (names, precise, _) in PROBES.items():
        if not _unproven(device, agree, *([dtype] if precise else [])):
            names_running.update(names)
    return names_running


@functools.cache
def _say(device: torch.device, text: str) -> None:
    logger.info("kernels on %s: %s", device, text)


def describe(running: set[str]) -> str:
    """One line that tells which kernels run, which wait for a proof, and what proves them."""
    probed = {name for names, *_ in PROBES.values() for name in names}
    in_order = [name for name in (*GPU_KERNELS, DEPENDENT) if name in probed]
    rest = [name for name in in_order if name not in running]
    if not rest:
        return "all of ours run"
    if not running:
        return f"PyTorch's operators; ours wait for a proof on this card: {proof.COMMAND}"
    runs = ", ".join(name for name in in_order if name in running)
    return f"{runs} run; off or waiting for a proof: {', '.join(rest)} ({proof.COMMAND})"


# The model with which kernels are timed: channels, heads, types of the vocabulary, keys of a row.
CHANNELS, HEADS, TYPES, KEYS = 512, 8, 32768, 64


class Twins(NamedTuple):
    """The same work twice, to be timed.

    Attributes:
        fused: launches the kernels.
        plain: asks PyTorch's operators.
    """

    fused: Callable[[], object]
    plain: Callable[[], object]


Probe = Callable[..., bool | str]


class Tried(NamedTuple):
    """Trial of kernels.

    Attributes:
        names: of the kernels. They are used together or not at all.
        precise: they are compiled for one precision, in which they are tried.
        twins: device, rows, and the precision -> what is timed.
    """

    names: tuple[str, ...]
    precise: bool
    twins: Callable[..., Twins]


PROBES: dict[Probe, Tried] = {}


def tries(
    *names: str, twins: Callable[..., Twins], precise: bool = False
) -> Callable[[Probe], Probe]:
    """Marks a function that tries these kernels on a device, and says whether they give what PyTorch's operators give,
    or what the device lacks for them. If ``precise``, it is also given a precision. ``twins``: see :class:`Tried`."""

    def mark(agree: Probe) -> Probe:
        PROBES[agree] = Tried(names, precise, twins)
        return agree

    return mark


def probes() -> Iterator[tuple[Probe, tuple[torch.dtype, ...]]]:
    """Every probe, in each precision that it has."""
    for agree, tried in PROBES.items():
        for dtype in PRECISIONS if tried.precise else (None,):
            yield agree, () if dtype is None else (dtype,)


def lacking(device: torch.device) -> str | None:
    """Tells what a device lacks for any kernel."""
    return None if device.type == "cuda" else "they are for a GPU"


def usable(device: torch.device, agree: Probe, *dtype: torch.dtype) -> bool:
    """Tells whether the kernels run on a device; arguments as for :func:`against`."""
    return against(device, agree, *dtype) is None


T = TypeVar("T")


def either(fused: T, plain: T, device: torch.device, agree: Probe, *dtype: torch.dtype) -> T:
    """The first of two ways to compute where the kernels run on a device, else the second, of PyTorch's operators;
    arguments as for :func:`against`."""
    return fused if usable(device, agree, *dtype) else plain


def against(device: torch.device, agree: Probe, *dtype: torch.dtype) -> str | None:
    """Why PyTorch's operators run in place of the kernels, None where the kernels do.

    Args:
        device: any.
        agree: tries the kernels; they run where that was done on this card with success, or where they are forced.
        dtype: where they are compiled for one precision.
    """
    if _off(agree):
        return f"{VARIABLE}={os.environ[VARIABLE]}"
    if reason := lacking(device):
        return reason
    key = device, agree, switches().forced, *dtype
    if key not in _known:
        reason = _unproven(device, agree, *dtype)
        _known[key] = unloaded(device, agree, *dtype) if reason is None else reason
    return _known[key]


_known: dict[tuple[Any, ...], str | None] = {}


def forget() -> None:
    """Asks anew which kernels run: proofs may have changed."""
    _known.clear()


def _off(agree: Probe) -> bool:
    off = switches().off
    return bool(off) and (GPU in off or not off.isdisjoint(PROBES[agree].names))


def _unproven(device: torch.device, agree: Probe, *dtype: torch.dtype) -> str | None:
    names = PROBES[agree].names
    if _off(agree):
        return f"{VARIABLE}={os.environ[VARIABLE]}"
    if not switches().forced.isdisjoint(names):
        return None
    return proof.against(device, agree, names, dtype)


def unloaded(device: torch.device, agree: Probe, *dtype: torch.dtype) -> str | None:
    """Why kernels cannot be compiled or loaded on a GPU; None: they are ready."""
    names = PROBES[agree].names
    sources = {SOURCES[name] for name in names if name in SOURCES}
    try:
        for source in sources:
            number = PRECISIONS[dtype[0]] if dtype and source in BY_PRECISION else None
            module(device, source, number)
    except (OSError, RuntimeError) as error:
        # Said once of all kernels that end alike: without a compiler that is each of them.
        level = logging.INFO if str(error) in _known.values() else logging.WARNING
        logger.log(level, "not used on %s, only slower: %s: %s", device, ", ".join(names), error)
        return str(error)
    return None
