"""A verifier as whole searches read it: one stock Transformer decoder, all of it in the compiled library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.compiled.searches import ReaderStruct, WholeSearch


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


# A call of the library is at most about so long, seconds: Python handles a signal (Ctrl-C) only behind it.
PAUSE = 0.05


class CompiledReader:
    """Runs whole searches over a batch that a decoder has taken up."""

    def __init__(self, decoder: CachedDecoder, temperature: float):
        compiled, kernel = decoder.compiled, decoder.packed.project_vocabulary.kernel
        assert compiled is not None and kernel is not None
        self.decoder, self.compiled = decoder, compiled
        self.table: Tensor | None = None
        self.struct = ReaderStruct(*compiled.addresses, kernel.address)
        self.struct.temperature, self.struct.seconds = temperature, PAUSE

    def run(self, search: WholeSearch) -> None:
        """Decodes to the end; makes room whenever a window needs more."""
        step, cache, end, reach = self.compiled.step, self.decoder.cache, 0, 1
        step.mask = step.seen = step.blocks = None
        step.causal, step.wanted, step.threads = True, 0, torch.get_num_threads()
        while True:
            cache.reserve(end)
            self.compiled.say_what_is_kept(cache.entries, cache.memory, cache.memory_mask)
            self.struct.places = cache.capacity
            embedding = self.decoder.embedding
            if embedding.positioned:
                self.table = embedding.positions(reach)
                step.positions, self.struct.positions = self.table.data_ptr(), len(self.table)
            else:
                step.positions = None
            if search.run(self.struct):
                return
            asked = search.ask()
            assert asked is not None
            end, reach = asked.end, asked.reach
