"""Prices of calls for drafts: as usual, as ``--call-price`` says, or timed in the compiled library."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fairseq_aggdec.budget.price import (
    MEASURED,
    USUAL_PRICE,
    CallPrice,
    key_of,
    parse_price,
    usual_price,
)
from fairseq_aggdec.engine.packed_decoder import PackedDecoder
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.compiled.reader import CompiledReaders
from fairseq_aggdec.search.compiled.searches import DRAFT, ReadingStruct
from fairseq_aggdec.search.drafter import Timed
from fairseq_aggdec.search.engines import GREEDY, EngineRequest, read_by_windows
from fairseq_aggdec.search.greedy.library import search_of
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState

logger = logging.getLogger(__name__)

# Places of the windows that are timed, and about how long that may take for a small model, seconds. Six rows are
# multiplied together, a seventh costs more.
PLACES, TIME = (1, 4, 6, 8, 16), 0.02

# Of this process: by the first model's weights, then by those of the others, the drafter and the threads.
_Known = dict[tuple[Any, ...], CallPrice | None]
_measured: WeakKeyDictionary[PackedDecoder, _Known] = WeakKeyDictionary()


def elsewhere() -> None:
    """Drafts that are not in the library; a function with a name, which copies of a generator can have."""


class Prices:
    """Says what calls cost.

    Args:
        said: as ``--call-price`` takes it.
        drafter: a model that drafts, whose drafts are timed; anything that stands for its weights.
        drafts: gives the drafter in the library, for the batch; None where it drafts elsewhere, which is not timed.
    """

    def __init__(
        self,
        said: str = USUAL_PRICE,
        drafter: object = None,
        drafts: Callable[[], Timed | None] = elsewhere,
    ):
        self.said, self.price = said, parse_price(said)
        self.drafter, self.drafts = drafter, drafts

    def of(self, verifier: Verifier, state: DecodeState) -> CallPrice:
        """The price for a batch that the verifier has encoded.

        Where drafts of other lengths give other outputs, it is the usual price of the compiled library: all workers of
        a job then weigh alike.
        """
        said = self.said_of(verifier, state) if state.exact else None
        if said is not None:
            return said
        return usual_price(self._key(verifier, state), verifier.precision.int8)

    def said_of(self, verifier: Verifier, state: DecodeState) -> CallPrice | None:
        """The price as it was given or measured; None: neither was asked for, or it cannot be measured."""
        if self.said != MEASURED:
            return self.price
        if not verifier.compiled or state.device.type != "cpu":
            return None
        if read_by_windows(EngineRequest(GREEDY, reader=verifier)) is not None:
            return None
        first, *others = (member.decoder.packed for member in verifier.members)
        known = _measured.setdefault(first, {})
        key = (*map(id, others), id(self.drafter), torch.get_num_threads())
        if key not in known:
            known[key] = self._measure(verifier, state)
        return known[key]

    def _key(self, verifier: Verifier, state: DecodeState) -> str:
        key = key_of(verifier.compiled, state.device.type)
        return "cuda half" if key == "cuda" and verifier.dtype is not torch.float32 else key

    def _measure(self, verifier: Verifier, state: DecodeState) -> CallPrice | None:
        drafts = self.drafts()
        if self.drafter is not None and drafts is None:
            return None
        longest = min(member.model.decoder.max_positions() for member in verifier.members)
        if longest < PLACES[-1]:
            return None
        price = measure(verifier, state, drafts)
        logger.info("calls cost, measured in ms: --call-price %s", price)
        return price


def measure(verifier: Verifier, state: DecodeState, drafts: Timed | None) -> CallPrice:
    """Times calls of the library on a batch that has just begun, in ms, and drafts of a model if there is one."""
    reader = CompiledReaders.of(verifier)
    for one in reader.readers:
        one.make_room(PLACES[-1], PLACES[-1])
    rules = Rules(pad=state.eos, unk=state.eos, eos=state.eos)  # nothing is decided
    search = search_of(state, rules, drafts=drafts, types=reader.types, channels=reader.channels)
    how = ReadingStruct(
        len(reader.readers), reader.types, reader.temperature, TIME, reader.together
    )
    struct = CallPrice(tuple((places, places) for places in PLACES)).struct
    structs = reader.structs()
    with nullcontext() if drafts is None else drafts.rehearsing():
        while search.price(structs, how, struct) == DRAFT:
            assert drafts is not None
            drafts.draft(search)
    points = tuple((places, 1e3 * struct.costs[i]) for i, places in enumerate(PLACES))
    return CallPrice(points, 1e3 * struct.draft, 1e3 * struct.slot)
