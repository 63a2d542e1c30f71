"""Greedy search of whole batches in the compiled library, whatever drafts: texts, a model, Python, or nothing."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch

from fairseq_aggdec.kernels.library import AcceptanceStruct
from fairseq_aggdec.options.options import learned_positions
from fairseq_aggdec.search.acceptance import Acceptance, exact, known, trusting
from fairseq_aggdec.search.compiled.reader import CompiledReaders
from fairseq_aggdec.search.compiled.rules import rule_options
from fairseq_aggdec.search.compiled.searches import (
    MATCHES,
    CopyOptionsStruct,
    GreedyOptionsStruct,
    Outputs,
    WholeSearch,
    address,
)
from fairseq_aggdec.search.compiled.windows import WindowReader
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import DeviceDrafter, Drafter, InLibrary
from fairseq_aggdec.search.greedy.outside import Follower
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import NO_COPIES, BatchVerdict, Copies
from fairseq_aggdec.windows.transfer import int64_array

LIMITS = ("end", "floor", "strict_floor")
WAYS = {"draft", "observe", "keep_rows"}  # methods of a drafter that say how it drafts


def search_of(
    state: DecodeState,
    rules: Rules,
    copies: Copies = NO_COPIES,
    accept: Acceptance = exact,
    drafts: InLibrary | None = None,
    outside: bool = False,
    types: int = 0,
    channels: int = 0,
    slots: int = 0,
    chains: bool = False,
) -> WholeSearch:
    """The search of a batch that has just begun.

    Args:
        accept: which drafted tokens are accepted.
        copies, drafts, outside: what drafts: texts that are copied, a model, Python.
        types: of the dictionary.
        channels: of the decoder's features.
        slots: of a row in a window, 0 for any number; a drafter that is trusted fills all of them.
        chains: drafts are cut to one path.
    """
    rows, acceptance = state.rows, known(accept)
    ends, floors, strict_floors = ([getattr(row, name) for row in rows] for name in LIMITS)
    ruled = rule_options(rules, ends, floors, strict_floors, [row.prefix for row in rows])
    options = GreedyOptionsStruct(
        *(ruled, len(rows), rows[0].tokens[0], torch.get_num_threads()),
        AcceptanceStruct(**({"outside": 1} if acceptance is None else acceptance)),
        *(slots, chains, channels, types),
    )
    options.outside = outside
    if drafts is not None:
        drafts.fill(options)
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
        copies.price.struct,
        copies.accepted,
        copies.checked,
    )
    options.copies = address(copying)
    return WholeSearch("greedy", options)


def decode(
    generator: Any, state: DecodeState, drafter: Drafter, counters: Counters, whole: bool
) -> None:
    """Decodes a batch to its end that the library can decode (:mod:`~fairseq_aggdec.search.engines`).

    Args:
        generator: a ``DraftAndVerifyGenerator`` that has started the batch.
        drafter: has been started on it.
        counters: statistics, added to.
        whole: the library reads the windows; else PyTorch does.
    """
    model, accept = generator.reader, generator.accept
    trusts = accept is trusting
    copies = drafter.copies() if drafts_as_named(drafter, "copies") and not trusts else None
    drafts: Any = None
    if copies is None and drafts_as_named(drafter, "in_library"):
        drafts = drafter.in_library(state)
    outside = copies is None and drafts is None and not trusts
    part = "draft" if trusts else "verify"
    reader: Any
    if whole:
        reader = drafts.reader(model.temperature) if trusts else CompiledReaders.of(model)
    else:
        channels = 0 if drafts is None else drafts.channels
        rules = generator.options.own_rules
        reader = WindowReader(model, state.device, accept, counters, channels, part, rules)
    search = search_of(
        *(state, Rules.of(generator.options), copies or NO_COPIES, accept, drafts, outside),
        types=generator.vocab_size,
        channels=reader.channels,
        slots=model.window_slots(len(state.rows)),
        chains=not whole and (not model.reads_trees or known(accept) is None),
    )
    clock = DraftClock(counters)
    follower = None
    in_python = outside or (trusts and not whole)  # a drafter that reads the rows
    if in_python or generator.watch is not None or state.rows[0].history is not None:
        observer = drafter if outside else None
        follower = Follower(search, state, observer, generator.watch, reader.output, trusts)
    if outside:
        assert follower is not None
        follower.positions = learned_positions([member.model for member in model.members])
        if whole and follower.observer is not None:
            reader.decide_at_once()  # the drafter may look at all logits
        reader.run(search, draft=clock.timed(follower.draft))
    else:
        timed_draft = (
            None if drafts is None else clock.timed(functools.partial(drafts.draft, search))
        )
        reader.run(search, None if follower is None else follower.follow, timed_draft)
    drafted_any = trusts or outside or drafts is not None or bool(copies and copies.texts)
    verdict, drafting = finish(search, follower, state, counters, drafted_any, whole)
    if whole:
        clock.ended(drafting, part)
    if drafts is not None:
        drafts.ended(search)
    elif verdict is not None and not outside and isinstance(drafter, DeviceDrafter):
        drafter.observe_batch(verdict)


def finish(
    search: WholeSearch,
    follower: Follower | None,
    state: DecodeState,
    counters: Counters,
    drafted_any: bool = True,
    whole: bool = True,
) -> tuple[BatchVerdict | None, float]:
    """Takes over what a search has found that has come to its end; ``whole``: its calls are not counted yet.

    Returns:
        what became of drafts, None where there were none; seconds that the library spent on them.
    """
    outputs = Outputs(search, len(state.rows) + len(state.finished))
    if follower is not None:
        follower.follow()
        state.scores = outputs.scores()
    if not whole:
        counters.calls -= outputs.result.calls
    return hand_over(outputs, state, counters, drafted_any), outputs.result.drafting


class DraftClock:
    """Tells the seconds of drafts apart from the others of a batch."""

    def __init__(self, counters: Counters):
        self.counters, self.seconds = counters, 0.0
        self.started = counters.read()

    def timed(self, draft: Callable[[], None]) -> Callable[[], None]:
        """Calls ``draft`` and adds up how long that takes."""

        def call() -> None:
            started = self.counters.read()
            draft()
            self.seconds += self.counters.read() - started

        return call

    def ended(self, drafting: float, part: str) -> None:
        """Counts the batch, of which the library spent ``drafting`` seconds on drafts and the others on ``part``."""
        drafting += self.seconds
        self.counters.seconds["draft"] += drafting
        self.counters.ended(part, self.started + drafting)


def drafts_as_named(drafter: Drafter, name: str) -> bool:
    """Tells whether a drafter drafts what its method ``name`` says: no heir of it drafts otherwise."""
    for kind in type(drafter).__mro__:
        if name in vars(kind):
            break
        if not WAYS.isdisjoint(vars(kind)):
            return False
    return WAYS.isdisjoint(vars(drafter))


def hand_over(
    outputs: Outputs, state: DecodeState, counters: Counters, drafted_any: bool = True
) -> BatchVerdict | None:
    """Writes what was decoded to the rows of the batch, and counts it as the plain loop does.

    Rows that a :class:`Follower` has written already are left as they are.

    Returns:
        what became of drafts, None where there were none.
    """
    if state.rows:
        state.finish(outputs.tokens(), outputs.scores(), outputs.rounds)
    result = outputs.result
    counters.calls += result.calls
    if not drafted_any:
        counters.iterations += result.iterations
        counters.emitted[1] += result.iterations
        counters.accepted_lengths[0] += result.iterations
        return None
    emitted, drafted, accepted = outputs.iterations()
    counters.add_all(emitted, drafted, accepted)
    return BatchVerdict(drafted, accepted, emitted)
