"""A verifier as whole searches read it: stock Transformer decoders, all of each in the compiled library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.options.stopping import check
from fairseq_aggdec.search.compiled.searches import (
    DRAFT,
    ENDED,
    NO_ROOM,
    ReaderStruct,
    ReadingStruct,
    WholeSearch,
    floats,
)
from fairseq_aggdec.windows.window import DecoderOutput

# A call of the library is at most about so long, seconds: between two calls Python handles signals (Ctrl-C) and asks
# whether the batch is still wanted.
PAUSE = 0.05
# Logits that are decided together, about: those of all rows of a large batch would leave the processor's cache.
TOGETHER = 6 << 20


class DecoderReader:
    """One decoder, as the library reads windows with it.

    Attributes:
        struct: what the library is given.
    """

    def __init__(self, decoder: CachedDecoder):
        compiled, kernel = decoder.compiled, decoder.chosen.kernel
        assert compiled is not None and kernel is not None
        self.decoder, self.compiled = decoder, compiled
        self.table: Tensor | None = None
        self.struct = ReaderStruct(*compiled.addresses, kernel.address)
        if decoder.heads is not None and decoder.heads.exact.first_head is not None:
            expand, contract = decoder.heads.exact.first_head
            assert expand.kernel is not None and contract.kernel is not None
            self.struct.expand, self.struct.contract = (
                expand.kernel.address,
                contract.kernel.address,
            )
        if decoder.types is not None:
            self.struct.shortlist = decoder.types.data_ptr()
        step = compiled.step
        step.mask = step.seen = step.blocks = None
        step.causal, step.wanted, step.threads = True, 0, torch.get_num_threads()
        self.make_room(0, 1)

    def make_room(self, end: int, reach: int) -> None:
        """Makes room for the given numbers of places of a row and of positions."""
        cache, embedding = self.decoder.cache, self.decoder.embedding
        cache.reserve(end)
        self.compiled.set_memory(cache.entries, cache.memory, cache.memory_mask)
        self.struct.places = cache.capacity
        self.compiled.step.positions = None
        if embedding.positioned:
            self.table = embedding.positions(reach)
            self.compiled.step.positions = self.table.data_ptr()
            self.struct.positions = self.table.size(0)


class CompiledReaders:
    """Runs whole searches over a batch that decoders have taken up; their mean probabilities count.

    Args:
        decoders: one for each model; none: a drafter that is trusted reads the windows.
        temperature: divides the logits before the softmax.
        types: of the vocabulary. channels: of the features.
    """

    def __init__(
        self, decoders: Sequence[CachedDecoder], temperature: float, types: int, channels: int = 0
    ):
        self.readers = [DecoderReader(decoder) for decoder in decoders]
        self.types, self.channels = types, channels
        self.temperature, self.together = temperature, TOGETHER

    @classmethod
    def of(cls, verifier: Any) -> CompiledReaders:
        """Reader of a verifier that the library can read windows with (:mod:`~fairseq_aggdec.search.engines`)."""
        decoders = [member.decoder for member in verifier.members]
        first = decoders[0]
        types, channels = first.packed.project_vocabulary.outputs, first.compiled.channels
        return cls(decoders, verifier.temperature, types, channels)

    def decide_at_once(self) -> None:
        """Has all logits of a window decided at once, so that they can be looked at."""
        self.together = 1 << 62

    def output(self, view: Any) -> DecoderOutput | None:
        """Output of the models for the last window, which ``view`` shows; None: its logits were decided in parts, or
        are a drafter's."""
        if not (self.readers and view.logits and view.features):
            return None
        features = floats(view.features, view.places * view.channels).view(view.places, -1)
        logits = floats(view.logits, view.places * view.types).view(view.places, -1)
        return DecoderOutput(logits, [features])

    def run(
        self,
        search: WholeSearch,
        watch: Callable[[], None] | None = None,
        draft: Callable[[], None] | None = None,
    ) -> None:
        """Decodes to the end.

        Args:
            watch: is called after every window.
            draft: is called where the drafter has to be asked in Python.
        """
        pause = PAUSE if watch is None else 0.0  # a run ends after one window
        how = ReadingStruct(len(self.readers), self.types, self.temperature, pause, self.together)
        each = self.structs()
        while (why := search.run(each, how)) != ENDED:
            check()
            if why == NO_ROOM:
                request = search.ask()
                assert request is not None
                for reader in self.readers:
                    reader.make_room(request.end, request.reach)
                each = self.structs()
            elif why == DRAFT:
                assert draft is not None
                draft()
            elif watch is not None:
                watch()

    def structs(self) -> Any:
        """Structures of all readers, side by side."""
        return (ReaderStruct * len(self.readers))(*[reader.struct for reader in self.readers])
