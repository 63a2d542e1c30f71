"""Batches of a greedy search that the compiled library decodes alone: with drafts copied from texts, or none."""

from __future__ import annotations

import itertools
from typing import Any

from fairseq_aggdec.kernels.library import WORD
from fairseq_aggdec.search.acceptance import Acceptance, TopBeta, exact
from fairseq_aggdec.search.compiled.reader import CompiledReaders, readable_decoders
from fairseq_aggdec.search.compiled.searches import (
    MATCHES,
    CopyOptionsStruct,
    GreedyOptionsStruct,
    Outputs,
    WholeSearch,
    address,
)
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import DeviceDrafter, Drafter
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import NO_COPIES, BatchVerdict, Copies
from fairseq_aggdec.windows.transfer import int64_array

LIMITS = ("end", "floor", "strict_floor")
WAYS = {"draft", "observe", "keep_rows"}  # methods of a drafter that say how it drafts


def search_of(
    state: DecodeState, rules: Rules, copies: Copies = NO_COPIES, accept: Acceptance = exact
) -> WholeSearch:
    """The search of a batch that has just begun; ``accept`` is exact or a :class:`TopBeta`."""
    rows = state.rows
    held = int64_array([getattr(row, name) for name in LIMITS for row in rows])
    for row in rows:
        held.extend(row.prefix)
    first, step = address(held), WORD * len(rows)
    ends, floors, strict_floors, prefixes = range(first, first + 4 * step, step)
    beta = (accept.beta, accept.tolerance) if isinstance(accept, TopBeta) else (0, 0.0)
    options = GreedyOptionsStruct(
        *(len(rows), rows[0].tokens[0], rules.pad, rules.unk, rules.eos),
        *(rules.unk_penalty, rules.no_repeat_ngram_size, rules.free_end, *beta),
        *(ends, floors, strict_floors, len(rows[0].prefix), prefixes),
    )
    if not copies.texts:
        return WholeSearch("greedy", options)
    texts = int64_array(list(itertools.chain.from_iterable(copies.texts)))
    sizes = int64_array([len(text) for text in copies.texts])
    copying = CopyOptionsStruct(
        address(texts),
        address(sizes),
        MATCHES.index(copies.match),
        copies.fixed,
        copies.most,
        copies.probing,
        copies.unknown,
        copies.step_cost,
        copies.accepted,
        copies.checked,
    )
    options.copies = address(copying)
    return WholeSearch("greedy", options)


def decode(generator: Any, state: DecodeState) -> bool:
    """Decodes a batch to its end, if the library can do that alone; else nothing has happened.

    Args:
        generator: a ``DraftAndVerifyGenerator`` that has started the batch.
    """
    verifier, drafter, accept = generator.verifier, generator.drafter, generator.accept
    copies = drafter.copies() if _as_it_says(drafter) else None
    if copies is None or not (decoders := readable_decoders(verifier)):
        return False
    if type(generator.rules) is not Rules or not (accept is exact or type(accept) is TopBeta):
        return False
    counters = generator.counters
    started = counters.read()
    search = search_of(state, generator.rules, copies, accept)
    CompiledReaders(decoders, verifier.temperature).run(search)
    counters.ended("verify", started)
    outputs = Outputs(search, len(state.rows))
    verdict = hand_over(outputs, state, counters, bool(copies.texts))
    if verdict is not None and isinstance(drafter, DeviceDrafter):
        drafter.observe_batch(verdict)
    return True


def _as_it_says(drafter: Drafter) -> bool:
    """Whether a drafter drafts what its ``copies`` says: no heir that inherits these has another way to draft."""
    for kind in type(drafter).__mro__:
        if "copies" in vars(kind):
            break
        if not WAYS.isdisjoint(vars(kind)):
            return False
    return WAYS.isdisjoint(vars(drafter))


def hand_over(
    outputs: Outputs, state: DecodeState, counters: Counters, drafted_any: bool = True
) -> BatchVerdict | None:
    """Writes what was decoded to the rows of the batch, and counts it as the plain loop does.

    Returns:
        what became of drafts, None where there were none.
    """
    state.finish(outputs.tokens(), outputs.scores(), outputs.rounds)
    found = outputs.found
    counters.calls += found.calls
    if not drafted_any:
        counters.iterations += found.iterations
        counters.emitted[1] += found.iterations
        counters.accepted_lengths[0] += found.iterations
        return None
    emitted, drafted, accepted = outputs.iterations()
    counters.add_all(emitted, drafted, accepted)
    return BatchVerdict(drafted, accepted, emitted)
