"""A verifier as whole searches read it: one stock Transformer decoder, all of it in the compiled library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.options.stopping import check
from fairseq_aggdec.search.compiled.searches import ENDED, NO_ROOM, ReaderStruct, WholeSearch


def readable_decoder(verifier: Any) -> CachedDecoder | None:
    """The decoder that whole searches read, None where what reads windows is more than that."""
    if type(verifier) is not Verifier or len(verifier.members) != 1 or verifier.grid is not None:
        return None
    decoder = verifier.members[0].decoder
    if not isinstance(decoder, CachedDecoder) or decoder.compiled is None:
        return None
    packed, plain = decoder.packed, decoder.heads is None and decoder.types is None
    plain = plain and packed.project_out is None and packed.span is None
    whole = decoder.compiled.embeds and packed.project_vocabulary.kernel is not None
    return decoder if plain and whole else None


# A call of the library is at most about so long, seconds: between two calls Python handles signals (Ctrl-C) and asks
# whether the batch is still wanted.
PAUSE = 0.05
# Logits that are decided together, about: those of all rows of a large batch would leave the processor's cache.
TOGETHER = 6 << 20


class CompiledReader:
    """Runs whole searches over a batch that a decoder has taken up."""

    def __init__(self, decoder: CachedDecoder, temperature: float):
        compiled, kernel = decoder.compiled, decoder.packed.project_vocabulary.kernel
        assert compiled is not None and kernel is not None
        self.decoder, self.compiled = decoder, compiled
        self.table: Tensor | None = None
        self.struct = ReaderStruct(*compiled.addresses, kernel.address)
        self.struct.temperature, self.struct.seconds = temperature, PAUSE
        self.struct.most = TOGETHER

    def run(self, search: WholeSearch, watch: Callable[[], None] | None = None) -> None:
        """Decodes to the end.

        Args:
            watch: is called after every window.
        """
        step = self.compiled.step
        step.mask = step.seen = step.blocks = None
        step.causal, step.wanted, step.threads = True, 0, torch.get_num_threads()
        if watch is not None:
            self.struct.seconds = 0.0  # a run ends after one window
        self._make_room(0, 1)
        while (why := search.run(self.struct)) != ENDED:
            check()
            if why == NO_ROOM:
                asked = search.ask()
                assert asked is not None
                self._make_room(asked.end, asked.reach)
            elif watch is not None:
                watch()

    def _make_room(self, end: int, reach: int) -> None:
        """For the given numbers of places of a row and of positions."""
        cache, embedding = self.decoder.cache, self.decoder.embedding
        cache.reserve(end)
        self.compiled.set_memory(cache.entries, cache.memory, cache.memory_mask)
        self.struct.places = cache.capacity
        self.compiled.step.positions = None
        if embedding.positioned:
            self.table = embedding.positions(reach)
            self.compiled.step.positions = self.table.data_ptr()
            self.struct.positions = self.table.size(0)
