"""The structures and calls of ``kernels/source/search/searches.cpp``, whose letters these are."""

import ctypes
import functools
import itertools
from array import array
from ctypes import byref  # unlike addressof() it asks no audit hooks
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.budget.price import CallPriceStruct
from fairseq_aggdec.kernels.library import AcceptanceStruct, checked, kernels, structure

_int, _pointer = ctypes.c_int64, ctypes.c_void_p

MeanStruct = structure("search/beam_budget.h", "Mean")
BudgetStruct = structure("search/beam_budget.h", "BeamBudget", Mean=MeanStruct)
RuleOptionsStruct = structure("search/rules.h", "RuleOptions")
BeamOptionsStruct = structure("search/beam_rules.h", "BeamOptions", RuleOptions=RuleOptionsStruct)
InterleavedOptionsStruct = structure(
    "search/interleaved.h", "InterleavedOptions", BeamOptions=BeamOptionsStruct
)
CopyOptionsStruct = structure("search/copying.h", "CopyOptions", CallPrice=CallPriceStruct)
GreedyOptionsStruct = structure(
    "search/greedy.h",
    "GreedyOptions",
    Acceptance=AcceptanceStruct,
    RuleOptions=RuleOptionsStruct,
)
DraftBudgetStruct = structure("search/draft_budget.h", "DraftBudget", CallPrice=CallPriceStruct)
ModelOptionsStruct = structure("search/model_drafter.h", "ModelOptions")
SlotOptionsStruct = structure(
    "search/model_drafter.h", "SlotOptions", ModelOptions=ModelOptionsStruct
)
HeadOptionsStruct = structure(
    "search/model_drafter.h", "HeadOptions", ModelOptions=ModelOptionsStruct
)
ReaderStruct = structure("search/loop.h", "Reader")
ReadingStruct = structure("search/loop.h", "Reading")
RequestStruct = structure("search/searches.cpp", "RequestView", read=True)
ResultStruct = structure("search/searches.cpp", "ResultView", read=True)
VerdictStruct = structure("search/searches.cpp", "VerdictView", read=True)
ModelStruct = structure("search/searches.cpp", "ModelView")
TreeStruct = structure("search/searches.cpp", "TreeView", read=True)

MATCHES = ("unique", "longest", "recent", "aligned")  # as copying.h and bookkeeping.cu number them
# Why a run came back, as loop.h numbers it.
NO_ROOM, ENDED, TIME_UP, DRAFT = range(4)


@functools.cache
def _declared(library: Any) -> Any:
    """The library with the types of the calls of searches."""
    for name, result, arguments in (
        ("search_free", None, (_pointer,)),
        ("search_ask", _int, (_pointer, _pointer)),
        ("search_draft", _int, (_pointer,)),
        ("search_take", _int, (_pointer, _pointer, _pointer, _int)),
        ("search_change", _int, (_pointer, _pointer, _int)),
        ("search_tables", _int, (_pointer, _pointer, _pointer, _int, _pointer)),
        ("search_run", _int, (_pointer,) * 3),
        ("search_result", _int, (_pointer, _pointer)),
        ("greedy_price", _int, (_pointer,) * 4),
        ("greedy_watch", None, (_pointer,)),
        ("greedy_verdict", _int, (_pointer, _pointer)),
        ("greedy_left", _int, (_pointer, _pointer)),
        ("greedy_accept", None, (_pointer, _pointer)),
        ("greedy_propose", _int, (_pointer, _pointer, _pointer, _pointer)),
        ("greedy_model", None, (_pointer, _pointer)),
        ("beam_tree", _int, (_pointer, _int, _pointer)),
    ):
        function = getattr(library, f"aggdec_{name}")
        function.restype, function.argtypes = result, arguments
        if result is not None:
            function.errcheck = checked
    for name in ("aggdec_beam", "aggdec_greedy", "aggdec_interleaved"):
        function = getattr(library, name)
        function.restype, function.argtypes, function.errcheck = _pointer, (_pointer,), checked
    return library


def numbers(of: Any, count: int) -> list[Any]:
    """The first numbers that a field of a structure points to; none where it points to nothing."""
    values: list[Any] = of[:count] if of else []
    return values


def floats(at: int, count: int) -> Tensor:
    """Numbers of the library's memory, which it uses again: a copy."""
    if not count:
        return torch.empty(0)
    memory = (ctypes.c_float * count).from_address(at)
    return torch.frombuffer(memory, dtype=torch.float32).clone()


def address(of: Any) -> int:
    """Address at which a structure, or whole numbers, begin in memory."""
    return of.buffer_info()[0] if isinstance(of, array) else ctypes.addressof(of)


class WholeSearch:
    """A search in the compiled library.

    Args:
        kind: ``beam``, ``greedy`` or ``interleaved``.
        options: of the batch; what they point to is copied.

    Raises:
        MemoryError: there is too little memory, here or in any call.
    """

    def __init__(self, kind: str, options: ctypes.Structure):
        self.library = _declared(kernels())
        self.handle = getattr(self.library, f"aggdec_{kind}")(byref(options))
        self.request, self.view = RequestStruct(), ResultStruct()
        self.last_verdict = VerdictStruct()

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.library.aggdec_search_free(self.handle)

    def ask(self) -> Any:
        """The window that is asked for, valid until its logits are taken; None when all sentences have ended."""
        more = self.library.aggdec_search_ask(self.handle, byref(self.request))
        return self.request if more else None

    def take(self, logits: Tensor, features: Tensor | None = None) -> None:
        """Goes on with the logits (N, V) fp32 of the window and its features (N, C) fp32."""
        read = None if features is None else features.data_ptr()
        self.library.aggdec_search_take(self.handle, read, logits.data_ptr(), logits.size(1))

    def draft(self) -> bool:
        """Makes the draft of the next window, once; false where Python has to be asked for it."""
        drafted: bool = self.library.aggdec_search_draft(self.handle) != DRAFT
        return drafted

    def take_tables(self, tables: Tensor, wanted: Tensor, features: Tensor | None = None) -> None:
        """Goes on with the tables (N, 2 K + 3) of the window, the logits wanted beside them, and its features (N, C).

        All are fp32 on the host; see :func:`~fairseq_aggdec.search.compiled.tables.tables_of`.
        """
        read = None if features is None else features.data_ptr()
        best = (tables.size(1) - 3) // 2
        arguments = tables.data_ptr(), wanted.data_ptr(), best, read
        self.library.aggdec_search_tables(self.handle, *arguments)

    def change(self, changes: Tensor) -> None:
        """Adds changes of the logits of the window by rules in Python: (C, 3) as in
        :class:`~fairseq_aggdec.search.compiled.tables.TableRequest`, in the order of their places."""
        self.library.aggdec_search_change(self.handle, changes.data_ptr(), len(changes))

    def left(self, most: int) -> list[int]:
        """The sentences of a greedy search, at most ``most``, that have not ended."""
        rows = (_int * most)()
        return rows[: self.library.aggdec_greedy_left(self.handle, rows)]

    def accept(self, stands: Tensor) -> None:
        """Says which tokens (N,) uint8 of the window are accepted; read when its tables are taken."""
        self.library.aggdec_greedy_accept(self.handle, stands.data_ptr())

    def verdict(self) -> Any:
        """Reads what became of the last window of a greedy search that is watched, until the next is asked for."""
        self.library.aggdec_greedy_verdict(self.handle, byref(self.last_verdict))
        return self.last_verdict

    def run(self, readers: Any, how: Any) -> int:
        """Decodes until a decoder has too little room for what is asked for, to the end, or until the time is up.

        Between the calls Python handles signals.
        """
        why: int = self.library.aggdec_search_run(self.handle, byref(readers), byref(how))
        return why

    def price(self, readers: Any, how: Any, price: Any) -> int:
        """Times calls at the begin of a batch; writes what they cost into ``price``, which says the places."""
        arguments = byref(readers), byref(how), byref(price)
        why: int = self.library.aggdec_greedy_price(self.handle, *arguments)
        return why

    def result(self) -> Any:
        """Reads what was found, once; valid as long as this object is."""
        self.library.aggdec_search_result(self.handle, byref(self.view))
        return self.view


class Outputs:
    """The outputs of a whole search, on the host.

    Args:
        search: that has come to its end.

    Attributes:
        result: numbers of all. sizes: tokens of each output. owners: its sentence, in beam search only.
        totals: the sum of each output's scores in beam search, nats.
        rounds: iterations of each sentence.
        lengths: of the sources, where outputs must have the same; else None.
    """

    def __init__(self, search: WholeSearch, sentences: int, lengths: list[int] | None = None):
        self.search, self.lengths = search, lengths
        result = self.result = search.result()
        self.sizes = numbers(result.lengths, result.outputs)
        self.rounds = numbers(result.rounds, sentences)
        self.owners: list[int] = []
        self.totals: list[float] = []
        if result.totals:
            self.owners = numbers(result.owners, result.outputs)
            self.totals = numbers(result.totals, result.outputs)

    def tokens(self) -> list[list[int]]:
        """Tokens of each output."""
        return self._by_output(self.result.tokens)

    def scores(self) -> list[list[float]]:
        """Scores of each output: the log-probabilities of its tokens."""
        return self._by_output(self.result.scores)

    def _by_output(self, of: Any) -> list[list[Any]]:
        flat = numbers(of, self.result.length)
        if len(self.sizes) == 1:
            return [flat]
        each = iter(flat)
        return [list(itertools.islice(each, size)) for size in self.sizes]

    def iterations(self) -> tuple[list[int], list[int], list[int]]:
        """Tokens emitted, drafted and accepted, by iteration of a sentence."""
        result = self.result
        emitted, drafted, accepted = (
            numbers(address, result.iterations)
            for address in (result.emitted, result.drafted, result.accepted)
        )
        return emitted, drafted, accepted
