"""The structures and calls of ``kernels/source/search/searches.cpp``, whose letters these are."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.kernels.library import checked, kernels

_int, _pointer, _double = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


class ReaderStruct(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("layers", "shape", "step", "vocabulary")),
        *((name, _int) for name in ("places", "positions")),
        *((name, _double) for name in ("temperature", "seconds")),
    )


class BeamOptionsStruct(ctypes.Structure):
    _fields_ = (
        *((name, _int) for name in ("sentences", "beam", "eos", "pad", "start", "threads")),
        *((name, _int) for name in ("limit", "floor", "prefix_size")),
        *((name, _pointer) for name in ("prefixes", "lengths")),
    )


class GreedyOptionsStruct(ctypes.Structure):
    _fields_ = (
        *((name, _int) for name in ("sentences", "start", "pad", "unk", "eos")),
        ("unk_penalty", _double),
        *((name, _int) for name in ("ngram", "free_end", "beta")),
        ("tolerance", _double),
        *((name, _pointer) for name in ("ends", "floors", "strict_floors")),
        ("prefix_size", _int),
        *((name, _pointer) for name in ("prefixes", "copies")),
    )


class CopyOptionsStruct(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("texts", "sizes")),
        *((name, _int) for name in ("match", "fixed", "most", "probing", "unknown")),
        *((name, _double) for name in ("step_cost", "accepted", "checked")),
    )


class AskedStruct(ctypes.Structure):
    _fields_ = (
        *((name, _int) for name in ("rows", "count", "end", "reach", "seen_bytes")),
        *((name, _pointer) for name in ("starts", "widths", "tokens", "depths", "seen")),
    )


class FoundStruct(ctypes.Structure):
    _fields_ = (
        *((name, _int) for name in ("outputs", "length", "iterations")),
        *((name, _int) for name in ("calls", "nodes", "used", "broken")),
        *((name, _pointer) for name in ("owners", "lengths", "tokens", "rounds")),
        *((name, _pointer) for name in ("emitted", "drafted", "accepted", "scores", "totals")),
    )


# Why a run came back, as loop.h numbers it.
NO_ROOM, ENDED, TIME_UP = range(3)

_LAYOUT = (
    ctypes.sizeof(ReaderStruct)
    + 1000 * sum(map(ctypes.sizeof, (BeamOptionsStruct, GreedyOptionsStruct, CopyOptionsStruct)))
    + 1000000 * (ctypes.sizeof(AskedStruct) + ctypes.sizeof(FoundStruct))
)


@functools.cache
def _declared(library: Any) -> Any:
    """The library with the types of the calls of searches."""
    for name, result, arguments in (
        ("layout", _int, ()),
        ("free", None, (_pointer,)),
        ("ask", _int, (_pointer, _pointer)),
        ("take", _int, (_pointer, _pointer, _int)),
        ("run", _int, (_pointer, _pointer)),
        ("found", _int, (_pointer, _pointer)),
    ):
        function = getattr(library, f"aggdec_search_{name}")
        function.restype, function.argtypes = result, arguments
        if result is not None:
            function.errcheck = checked
    for name in ("aggdec_beam", "aggdec_greedy"):
        function = getattr(library, name)
        function.restype, function.argtypes, function.errcheck = _pointer, (_pointer,), checked
    if library.aggdec_search_layout() != _LAYOUT:
        raise RuntimeError("the structures of searches.cpp and searches.py differ")
    return library


def numbers(address: int | None, count: int) -> list[int]:
    """``count`` whole numbers of the library."""
    return (_int * count).from_address(address)[:] if address and count else []


def words(values: Sequence[int]) -> Any:
    """Whole numbers as the library reads them."""
    return (_int * len(values))(*values)


class WholeSearch:
    """A search in the compiled library.

    Args:
        kind: ``beam`` or ``greedy``.
        options: of the batch; what they point to is copied.

    Raises:
        MemoryError: there is too little memory, here or in any call.
    """

    def __init__(self, kind: str, options: ctypes.Structure):
        self.library = _declared(kernels())
        self.handle = getattr(self.library, f"aggdec_{kind}")(ctypes.addressof(options))
        self.asked, self.view = AskedStruct(), FoundStruct()

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.library.aggdec_search_free(self.handle)

    def ask(self) -> AskedStruct | None:
        """The window that is asked for, valid until its logits are taken; None when all sentences have ended."""
        more = self.library.aggdec_search_ask(self.handle, ctypes.addressof(self.asked))
        return self.asked if more else None

    def take(self, logits: Tensor) -> None:
        """Goes on with the logits (N, V) fp32 of the window, which may be changed."""
        self.library.aggdec_search_take(self.handle, logits.data_ptr(), logits.size(1))

    def run(self, reader: ReaderStruct) -> bool:
        """Decodes to the end, or, False, until the decoder has too little room for what is asked for.

        Between the calls Python handles signals.
        """
        while (
            why := self.library.aggdec_search_run(self.handle, ctypes.addressof(reader))
        ) == TIME_UP:
            pass
        return bool(why == ENDED)

    def found(self) -> FoundStruct:
        """What was found, once; valid as long as this object is."""
        self.library.aggdec_search_found(self.handle, ctypes.addressof(self.view))
        return self.view


class Outputs:
    """The outputs of a whole search, on the host.

    Args:
        search: that has come to its end.

    Attributes:
        found: numbers of all. owners, sizes: sentence and tokens of each output.
        totals: the sum of each output's scores in beam search, nats.
        rounds: iterations of each sentence.
        lengths: of the sources, where outputs must have the same; else None.
    """

    def __init__(self, search: WholeSearch, sentences: int, lengths: list[int] | None = None):
        self.search, self.lengths = search, lengths
        found = self.found = search.found()
        self.owners = numbers(found.owners, found.outputs)
        self.sizes = numbers(found.lengths, found.outputs)
        self.rounds = numbers(found.rounds, sentences)
        self.totals: list[float] = []
        if found.totals:
            self.totals = (_double * found.outputs).from_address(found.totals)[:]

    def tokens(self) -> list[Tensor]:
        """(T,) int64 of each output, in memory of its own: what fairseq gets it changes in place."""
        return self._split(self.found.tokens, _int, torch.int64)

    def scores(self) -> list[Tensor]:
        """(T,) fp32 of each output, in memory of its own."""
        return self._split(self.found.scores, ctypes.c_float, torch.float32)

    def _split(self, address: int, kind: Any, dtype: torch.dtype) -> list[Tensor]:
        if not self.sizes:
            return []
        memory = (kind * self.found.length).from_address(address)
        whole = torch.frombuffer(memory, dtype=dtype)
        return [part.clone() for part in whole.split(self.sizes)]

    def iterations(self) -> tuple[list[int], list[int], list[int]]:
        """Tokens emitted, drafted and accepted, by iteration of a sentence."""
        found = self.found
        emitted, drafted, accepted = (
            numbers(address, found.iterations)
            for address in (found.emitted, found.drafted, found.accepted)
        )
        return emitted, drafted, accepted
