"""Models that draft in the compiled library, beside its greedy search: no Python between iterations."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from fairseq_aggdec.budget.draft_length import AdaptiveDraftLength, DraftLength
from fairseq_aggdec.drafters.proposer import Proposer
from fairseq_aggdec.drafters.trees import TreeGrower
from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.heads import CompiledHeads, DecoderHeads
from fairseq_aggdec.search.compiled.reader import CompiledReaders
from fairseq_aggdec.search.compiled.searches import (
    DraftBudgetStruct,
    ModelStruct,
    WholeSearch,
    address,
)


class DraftMemory:
    """Structures of a drafter, kept from batch to batch.

    Args:
        kind: of its options.
    """

    def __init__(self, kind: Any):
        self.struct, self.budget = kind(), DraftBudgetStruct()
        self.at, self.budget_at = address(self.struct), address(self.budget)

    def cleared(self) -> DraftMemory:
        for at, of in ((self.at, self.struct), (self.budget_at, self.budget)):
            ctypes.memset(at, 0, ctypes.sizeof(of))
        return self


class CompiledDraft:
    """A drafter of a batch in the library.

    Args:
        memory: has the options of slots or of heads, already written but for what all have in common.
        name: of the field of greedy options that they are put in.
        proposer, draft_length, trees: of the drafter.
        begin: has the drafter read the sources, once it drafts.
        stop: is told why the drafter cannot go on.

    Attributes:
        budget: what the library changes while it decodes.
        channels: of the verifier's features that it reads; 0: it reads none.
    """

    channels = 0

    def __init__(
        self,
        memory: DraftMemory,
        name: str,
        proposer: Proposer,
        draft_length: DraftLength,
        trees: TreeGrower | None,
        begin: Callable[[], None],
        stop: Callable[[str], None],
    ):
        self.memory, self.struct, self.budget = memory, memory.struct, memory.budget
        self.name, self.proposer = name, proposer
        self.draft_length, self.trees, self.begin, self.stop = draft_length, trees, begin, stop
        write_budget(self.budget, draft_length, trees)
        model = self.struct.model
        model.proposer, model.budget = proposer.address, memory.budget_at
        model.threads, model.learning = torch.get_num_threads(), proposer.learning

    def fill(self, options: Any) -> None:
        """Names this drafter in the options of a search."""
        setattr(options, self.name, self.memory.at)
        self.struct.model.eos = options.rules.eos

    def draft(self, search: WholeSearch) -> None:
        """Makes ready what the library lacks to draft: sources that are read, or room."""
        if not self.struct.model.ready:
            self.begin()
            self.struct.model.ready = 1
        self.make_room(_model(search).wanted)

    def rehearsing(self) -> AbstractContextManager[None]:
        return self.proposer.rehearsing()

    def make_room(self, end: int) -> None:
        """Makes room for windows of up to the given number of places."""

    def ended(self, search: WholeSearch) -> None:
        """Takes up what was learned from the batch."""
        take_up(self.budget, self.draft_length, self.trees)
        model = _model(search)
        if model.broken:
            self.stop("numbers that are not finite, though its weights are")
        elif model.numbers and self.proposer.learning:
            memory = (ctypes.c_float * model.numbers).from_address(model.learned)
            rows = torch.frombuffer(memory, dtype=torch.float32)
            self.proposer.learn_rows(rows.view(-1, self.struct.model.channels))


class CompiledSlots(CompiledDraft):
    """The slots of a drafter whose decoder the library runs."""

    def __init__(self, memory: DraftMemory, reader: CachedDecoder, **how: Any):
        compiled = reader.compiled
        assert compiled is not None
        model = memory.cleared().struct.model
        model.layers, model.shape, model.step = compiled.addresses
        model.channels = compiled.channels
        super().__init__(memory, "slots", **how)
        self.decoder, self.compiled = reader, compiled

    def reader(self, temperature: float) -> CompiledReaders:
        """Reader of the windows of a drafter that is trusted."""
        return CompiledReaders([], temperature, self.proposer.kept[0].outputs)

    def make_room(self, end: int) -> None:
        reader, model = self.decoder, self.struct.model
        reader.reserve(end, end)
        cache = reader.cache
        self.compiled.set_memory(cache.entries, cache.memory, cache.memory_mask)
        model.places = cache.capacity
        self.compiled.step.positions = None
        if reader.embedding.positioned:
            self.table = reader.embedding.positions(end)
            self.compiled.step.positions = self.table.data_ptr()
            if reader.embedding.queries is not None:
                self.compiled.step.queries = reader.embedding.queries.data_ptr()
            model.positions = self.table.size(0)


class CompiledHeadDrafts(CompiledDraft):
    """The block heads of the verifier.

    Args:
        heads: of the decoder.
        channels: of its features.
        heads: the heads as the library reads them.
    """

    def __init__(
        self,
        memory: DraftMemory,
        heads: DecoderHeads,
        channels: int,
        compiled: CompiledHeads,
        **how: Any,
    ):
        struct = memory.cleared().struct
        model, layers = struct.model, compiled.layers
        struct.heads = address(compiled.struct)
        model.channels = self.channels = channels
        if layers is not None:
            assert layers.compiled is not None and compiled.opening is not None
            model.layers, model.shape, model.step = layers.compiled.addresses
            self.opening = compiled.opening.float().contiguous()
            struct.opening = self.opening.data_ptr()
        self.heads, rows = compiled, len(heads.sentences)

        def begin() -> None:
            if layers is not None:
                layers.read_all(heads.encoder_out, rows)

        super().__init__(memory, "heads", begin=begin, **how)


def _model(search: WholeSearch) -> Any:
    view = ModelStruct()
    search.library.aggdec_greedy_model(search.handle, ctypes.byref(view))
    return view


def has_budget(draft_length: DraftLength) -> bool:
    """Tells whether the library decides how much is drafted as this does."""
    if type(draft_length) is AdaptiveDraftLength:
        return draft_length.weighs
    return type(draft_length) is DraftLength


def write_budget(budget: Any, draft_length: DraftLength, trees: TreeGrower | None) -> None:
    """Tells the library what is known of drafts; both have been started on the batch."""
    budget.size = budget.nodes = draft_length.size
    budget.price = draft_length.price.struct
    if trees is not None:
        nodes = trees.budget
        budget.nodes, budget.stops, budget.branches = nodes.most, nodes.stops, nodes.branches
        budget.depth = trees.depth
    if isinstance(draft_length, AdaptiveDraftLength):
        budget.adapts, budget.per_batch = True, draft_length.per_batch
        budget.pays, budget.tries = draft_length.pays, draft_length.tries
        budget.gained, budget.gained_weight = draft_length.gained.sum, draft_length.gained.weight
        drafted = draft_length.drafted
        budget.drafted, budget.drafted_weight = drafted.sum, drafted.weight
        budget.hoped, budget.hoped_weight = draft_length.hoped.sum, draft_length.hoped.weight


def take_up(budget: Any, draft_length: DraftLength, trees: TreeGrower | None) -> None:
    """Writes back what the library has learned."""
    if trees is not None:
        trees.depth = budget.depth
    if isinstance(draft_length, AdaptiveDraftLength):
        draft_length.tries = math.inf if math.isinf(budget.tries) else int(budget.tries)
        for name in ("gained", "drafted", "hoped"):
            mean = getattr(draft_length, name)
            mean.sum, mean.weight = getattr(budget, name), getattr(budget, f"{name}_weight")
