"""Decides which engine decodes a batch, and why not another: the only place that decides it.

Each engine says in one sentence why it cannot decode what is asked for. The first one without such a gap decodes;
``aggdec doctor`` prints the list for a model and every method. An engine that learns to decode more loses a line of its
``gaps`` here. Stock fairseq is the last one. It has gaps too: it decodes only where its output is that of the method,
and otherwise the batch is refused with all reasons.
"""

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.engine.member import LeftToStock
from fairseq_aggdec.engine.plain.support import model_gap
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.options.stock_generator import generator_gap, search_gap
from fairseq_aggdec.search.acceptance import exact, known
from fairseq_aggdec.search.drafter import DeviceDrafter, EmptyDrafter
from fairseq_aggdec.search.rules import OwnRule
from fairseq_aggdec.search.state import DecodeState

GREEDY, BEAM, DRAFT_ONLY = "greedy", "beam", "nar"
INTERLEAVED, LATTICE = "interleaved", "lattice"
# Searches, named as their method is, whose output stock fairseq never gives -> why not.
NOT_IN_STOCK = {
    DRAFT_ONLY: "it has the model of --path only, and the output is to be the drafter's",
    INTERLEAVED: "it writes one word per step",
    LATTICE: "it cannot search a lattice",
}


@dataclass(frozen=True)
class EngineRequest:
    """Request to the engines: a batch that the models have encoded, or (``only_stock``) one that they cannot.

    Attributes:
        search: ``GREEDY``, ``BEAM``, ...
        only_stock: why none of our engines can decode it; None: they are asked.
        reader: reads the windows: a verifier, or the drafter where nobody verifies it.
        accept: which drafted tokens are accepted. drafter: has been started. state: of the batch.
        watched: who looks at every iteration, as a sentence; None: nobody.
        timed: the parts of an iteration are timed apart, on a GPU by waiting for it.
        restricted: a shortlist restricts the vocabulary.
        precision: how the models compute.
        rules: generation rules from outside the package.
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
    precision: Precision = EXACT
    rules: Sequence[OwnRule] = ()

    @functools.cached_property
    def size_on_device(self) -> int | None:
        """Tells how many tokens are drafted for each row on the device; to ask this starts the drafter there."""
        size: int | None = self.drafter.start_on_device(self.state)
        return size


class SearchEngine:
    """An engine.

    Attributes:
        name: for programs. title: for users.
    """

    name: str
    title: str

    def gap(self, request: EngineRequest) -> str | None:
        """Why this engine cannot decode a request; None where it can."""
        return request.only_stock or _unruled(request) or next(self.gaps(request), None)

    def gaps(self, request: EngineRequest) -> Iterator[str]:
        """The reasons, of which the first counts: each may be asked for only where those before it do not hold."""
        raise NotImplementedError

    def says(self, request: EngineRequest) -> str:
        """The line of the log for a request that this engine decodes."""
        return f"decoding by {self.title}"

    def decode(self, generator: Any, *batch: Any) -> Any:
        """Decodes a batch by the search of a generator, which has a method for each engine of ours."""
        raise NotImplementedError


NO_LIBRARY = "there is no compiled library"
NO_GPU = "no GPU decodes this batch"


class BoardEngine(SearchEngine):
    """The state of a batch in tensors on the device; on a GPU an iteration is a captured graph."""

    name, title = "board", "PyTorch alone"

    def says(self, request: EngineRequest) -> str:
        if getattr(request.reader, "captures", False):
            return "decoding by the GPU alone: iterations are captured graphs"
        return "decoding by PyTorch's operators, step by step"

    def decode(self, generator: Any, *batch: Any) -> Any:
        return generator.on_board(*batch)

    def gaps(self, request: EngineRequest) -> Iterator[str]:
        for rule in request.rules:
            if not rule.in_tensors:
                return iter([f"the generation rule {type(rule).__name__} has no on_device"])
        if request.search == BEAM:
            return self._of_beam(request)
        if request.search == INTERLEAVED:
            return self._of_interleaved(request)
        if request.search == LATTICE:
            return iter(())
        return self._of_greedy(request)

    def _of_interleaved(self, request: EngineRequest) -> Iterator[str]:
        if kernels() is not None and read_by_windows(request) is None:
            yield "no GPU, and the library has all layers"

    def _of_beam(self, request: EngineRequest) -> Iterator[str]:
        if kernels() is None:
            return
        if not request.reader.captures:
            yield NO_GPU
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
            yield NO_GPU
        if request.size_on_device is None:
            yield f"the {type(drafter).__name__} drafts this batch on the host"


class LibraryEngine(SearchEngine):
    """The compiled library alone: the batch is one call."""

    name, title = "library", "compiled CPU kernels, a batch in one call"

    def gaps(self, request: EngineRequest) -> Iterator[str]:
        if kernels() is None:
            yield NO_LIBRARY
        if (gap := read_by_windows(request)) is not None:
            yield gap

    def decode(self, generator: Any, *batch: Any) -> Any:
        return generator.in_library(*batch)


class WindowsEngine(SearchEngine):
    """The search of the compiled library, whose windows PyTorch reads."""

    name, title = "windows", "the compiled search, with PyTorch's operators for each window"

    def gaps(self, request: EngineRequest) -> Iterator[str]:
        if kernels() is None:
            yield NO_LIBRARY

    def decode(self, generator: Any, *batch: Any) -> Any:
        return generator.by_windows(*batch)


class StockEngine(SearchEngine):
    """``SequenceGenerator`` of fairseq, where its output is that of the method."""

    name, title = "stock", "stock fairseq"

    def gap(self, request: EngineRequest) -> str | None:
        return next(self.gaps(request), None)

    def gaps(self, request: EngineRequest) -> Iterator[str]:
        if request.search in NOT_IN_STOCK:
            yield NOT_IN_STOCK[request.search]
        if request.accept is not exact and not isinstance(request.drafter, EmptyDrafter):
            yield "it accepts no drafts, and --acceptance decides about the output"
        if request.restricted:
            yield "it has no --shortlist"
        for rule in request.rules:
            yield f"it does not have the generation rule {type(rule).__name__}"
        if request.precision.int8:
            yield "it has no --int8"
        if request.precision.strict:
            yield "it has no --strict"

    def decode(self, generator: Any, *batch: Any) -> Any:
        raise LeftToStock(None)


STOCK = StockEngine()
ENGINES: tuple[SearchEngine, ...] = BoardEngine(), LibraryEngine(), WindowsEngine(), STOCK


Answers = list[
    tuple[SearchEngine, str | None]
]  # engines that were asked, in order, each with its gap


def gaps_of(request: EngineRequest) -> Answers:
    """The engines that are asked; the last has no gap and decodes, unless even stock fairseq has one."""
    answers: Answers = []
    for engine in ENGINES:
        answers.append((engine, engine.gap(request)))
        if answers[-1][1] is None:
            break
    return answers


def choose(request: EngineRequest) -> Answers:
    """The engines that are asked, of which the last decodes.

    Raises:
        ValueError: nobody decodes the request.
    """
    answers = gaps_of(request)
    if (gap := answers[-1][1]) is not None:
        raise ValueError(
            f"no engine can decode this: {_gaps(answers[:-1])}; nor can stock fairseq: {gap}"
        )
    return answers


def _gaps(answers: Answers) -> str:
    """The reasons, each once."""
    return "; ".join(dict.fromkeys(str(gap) for _, gap in answers))


def line_of(answers: Answers, request: EngineRequest) -> str:
    """The line of the log about who decodes, and why not another.

    Where the machine has no GPU, why the board does not decode is left out: there it only takes the library's place.
    """
    *others, (engine, _) = answers
    if engine is STOCK:
        return f"left to stock fairseq: {_gaps(others)}"
    if not torch.cuda.is_available():
        others = [(other, gap) for other, gap in others if other.name != BoardEngine.name]
    reasons = "".join(f"; not {other.title}: {gap}" for other, gap in others)
    return engine.says(request) + reasons


def level_of(answers: Answers) -> int:
    """The level of that line in the log: tools, and Python by default, show warnings only."""
    return logging.WARNING if answers[-1][0] is STOCK else logging.INFO


def _unruled(request: EngineRequest) -> str | None:
    """Why none of our engines can apply the rules from outside the package."""
    if not request.rules or request.search in (GREEDY, BEAM):
        return None
    return f"--decoding {request.search} takes no generation rule of one's own"


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
    if request.search == DRAFT_ONLY:
        if verifier.in_library(request.state) is None:
            yield "a drafter that the library does not have"
        return
    if type(verifier) is not Verifier:
        yield "no verifier of this package"
    if request.rules:
        yield "a generation rule in Python"
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


def of_call(generator: Any, sample: dict[str, Any], *args: Any, **kwargs: Any) -> str | None:
    """Why only stock fairseq decodes a call of ``_generate``: by its sources, by what was put onto the generator since
    it was built, or by an argument that only stock reads. Models may add to that when they have encoded the batch
    (:class:`~fairseq_aggdec.engine.member.LeftToStock`)."""
    if sample["net_input"].get("src_tokens") is None:
        return "sources that are no src_tokens"
    return of_generator(generator) or _of_arguments(generator.pad, *args, **kwargs)


def _of_arguments(
    pad: int, prefix_tokens: Any = None, constraints: Any = None, bos_token: Any = None
) -> str | None:
    if isinstance(bos_token, Tensor) and bos_token.numel() > 1:
        return "a bos_token for each hypothesis"
    return "a bos_token that is padding" if bos_token == pad else None


def of_generator(generator: Any) -> str | None:
    """Why only stock fairseq can decode with a generator of ours: what was changed on it since it was built."""
    if generator.asked_search in NOT_IN_STOCK:
        return None
    if gap := search_gap(generator):
        return gap
    return _of_greedy_search(generator) if generator.asked_search == GREEDY else None


def _of_greedy_search(generator: Any) -> str | None:
    if generator.beam_size > 1:
        return f"a beam of {generator.beam_size}"
    # Then <unk> may outgrow the source in stock, whose forced </s> scores 0.
    unknown = generator.match_source_len and generator.unk_penalty < 0
    return "--unkpen below 0 with --match-source-len" if unknown else None


def of_stock_generator(
    generator: Any, request_gaps: Iterator[str], greedy: bool, known: bool = False
) -> str | None:
    """Why only stock fairseq can do what the generator does that a task has built.

    Args:
        request_gaps: options that ask for another search than stock beam search.
        greedy: the search would be a greedy one.
        known: the modules of its models were looked at; they are again before every batch.
    """
    gap = (
        generator_gap(generator)
        or next(request_gaps, None)
        or of_models(generator.model.models, known)
    )
    return gap or (_of_greedy_search(generator) if greedy else None)


def of_models(models: Sequence[Any], known: bool = False) -> str | None:
    """Why beam search over trees cannot decode with models as stock fairseq does; ``known`` as above."""
    for model in models:
        decoder = model.decoder
        if not known and (gap := model_gap(model)):
            return gap
        if getattr(decoder, "geometry", Geometry()) != Geometry():
            return "a model that writes several words per step"
        if getattr(decoder, "attention_span", None) is not None:
            return "local attention"
    return None
