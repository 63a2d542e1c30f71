"""Decides which engine decodes a batch, and why not another: the only place that decides it.

Each engine says in one sentence why it cannot decode what is asked for. The first one without such a gap decodes;
``aggdec doctor`` prints the list for a model and a method. An engine that learns to decode more loses a line of its
``gaps`` here.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.search.acceptance import exact, known
from fairseq_aggdec.search.drafter import DeviceDrafter
from fairseq_aggdec.search.state import DecodeState

GREEDY, BEAM, DRAFT_ONLY, INTERLEAVED = "greedy", "beam", "draft-only", "interleaved"


@dataclass(frozen=True)
class EngineRequest:
    """Request to the engines: a batch that the models have encoded.

    Attributes:
        search: ``GREEDY``, ``BEAM``, ...
        only_stock: why only stock fairseq can decode it; None: others can.
        reader: reads the windows: a verifier, or the drafter where nobody verifies it.
        accept: which drafted tokens are accepted. drafter: has been started. state: of the batch.
        watched: who looks at every iteration, as a sentence; None: nobody.
        timed: the parts of an iteration are timed apart, on a GPU by waiting for it.
        restricted: a shortlist restricts the vocabulary.
    """

    search: str
    reader: Any = None
    only_stock: str | None = None
    accept: Any = exact
    drafter: Any = None
    state: DecodeState | None = None
    watched: str | None = None
    timed: bool = False
    restricted: bool = False

    @functools.cached_property
    def size_on_device(self) -> int | None:
        """Tells how many tokens are drafted for each row on the device; to ask this starts the drafter there."""
        size: int | None = self.drafter.start_on_device(self.state)
        return size


class SearchEngine:
    """An engine. ``name`` is for the log, ``where`` says what it is."""

    name: str
    where: str

    def gap(self, request: EngineRequest) -> str | None:
        """Why this engine cannot decode a request; None where it can."""
        return request.only_stock or next(self.gaps(request), None)

    def gaps(self, request: EngineRequest) -> Iterator[str]:
        """The reasons, of which the first counts: each may be asked for only where those before it do not hold."""
        raise NotImplementedError


class BoardEngine(SearchEngine):
    """The state of a batch in tensors on the device; on a GPU an iteration is a captured graph."""

    name, where = "board", "on a GPU without the host; on a CPU where there is no compiled library"

    def gaps(self, request: EngineRequest) -> Iterator[str]:
        if request.search == BEAM:
            return self._of_beam(request)
        if request.search == INTERLEAVED:
            return self._of_interleaved(request)
        return self._of_greedy(request)

    def _of_interleaved(self, request: EngineRequest) -> Iterator[str]:
        if kernels() is not None and read_by_windows(request) is None:
            yield "no GPU, and the library has all layers"

    def _of_beam(self, request: EngineRequest) -> Iterator[str]:
        if kernels() is None:
            return
        if not request.reader.captures:
            yield "no GPU with graphs of this batch"
        if not request.reader.reads_trees:
            yield "decoders that read no trees"
        yield from _of_every_iteration(request)

    def _of_greedy(self, request: EngineRequest) -> Iterator[str]:
        drafter, reader = request.drafter, request.reader
        yield from _of_every_iteration(request)
        if request.restricted:
            yield "--shortlist"
        if not isinstance(drafter, DeviceDrafter):
            yield f"a {type(drafter).__name__} drafts on the host"
        if not (reader.captures or reader.launches):
            yield "no GPU with graphs or kernels for this batch"
        if request.size_on_device is None:
            yield f"the {type(drafter).__name__} drafts this batch on the host"


class LibraryEngine(SearchEngine):
    """The compiled library: the batch is one call, or PyTorch reads its windows (:func:`read_by_windows`)."""

    name, where = "library", "the compiled library, in one call on a CPU, else window by window"

    def gaps(self, request: EngineRequest) -> Iterator[str]:
        if kernels() is None:
            yield "there is no compiled library"


class StockEngine(SearchEngine):
    """``SequenceGenerator`` of fairseq."""

    name, where = "stock", "stock fairseq"

    def gap(self, request: EngineRequest) -> None:
        """Stock decodes what nobody else does."""


ENGINES: tuple[SearchEngine, ...] = BoardEngine(), LibraryEngine(), StockEngine()


def gaps_of(request: EngineRequest) -> list[tuple[SearchEngine, str | None]]:
    """The engines that were asked, in order, each with its gap; the last has none and decodes."""
    asked = []
    for engine in ENGINES:
        gap = engine.gap(request)
        asked.append((engine, gap))
        if gap is None:
            return asked
    raise AssertionError("stock decodes everything")


def _of_every_iteration(request: EngineRequest) -> Iterator[str]:
    if request.watched is not None:
        yield request.watched
    if request.timed:
        yield "the parts of an iteration are timed apart"


def read_by_windows(request: EngineRequest) -> str | None:
    """Why PyTorch reads the windows of a search in the library; None: the whole batch is one call."""
    return next(_unread_by_library(request), None)


def _unread_by_library(request: EngineRequest) -> Iterator[str]:
    verifier = request.reader
    if type(verifier) is not Verifier:
        yield "no verifier of this package"
    if verifier.grid is not None:
        yield "--strict"
    for member in verifier.members:
        yield from _not_compiled(member.decoder)
    if known(request.accept) is None:
        yield "an acceptance rule in Python"


def _not_compiled(decoder: Any) -> Iterator[str]:
    if decoder.compiled is None:
        yield "layers that the library does not have"
        return
    first = None if decoder.heads is None else decoder.heads.exact.first_head
    if any(part.kernel is None for part in first or ()):
        yield "block heads that the library does not have"
    if decoder.packed.project_out is not None or decoder.packed.span is not None:
        yield "a projection before the vocabulary, or local attention"
    if not decoder.compiled.embeds or decoder.chosen.kernel is None:
        yield "embeddings or a vocabulary that the library does not have"


def only_stock(generator: Any, sample: dict[str, Any], *args: Any, **kwargs: Any) -> str | None:
    """Why only stock fairseq decodes a call of ``_generate``: by its sources, by what was put onto the generator since
    it was built, or by an argument that only stock reads. Models may add to that when they have encoded the batch
    (:class:`~fairseq_aggdec.engine.member.LeftToStock`)."""
    if sample["net_input"].get("src_tokens") is None:
        return "sources that are no src_tokens"
    if not generator.may_leave_to_stock:
        return None
    gap: str | None = generator.gap()
    return gap or _of_call(generator.pad, *args, **kwargs)


def _of_call(
    pad: int, prefix_tokens: Any = None, constraints: Any = None, bos_token: Any = None
) -> str | None:
    if isinstance(bos_token, Tensor) and bos_token.numel() > 1:
        return "a bos_token for each hypothesis"
    return "a bos_token that is padding" if bos_token == pad else None
