"""A method beside stock fairseq on the same sentences, one at a time: how long, where the time goes, the same text?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench import table
from fairseq_aggdec.bench.systems import LABELS, of_session
from fairseq_aggdec.bench.timing import Measurement, System, different, measure


@dataclass
class Timed:
    """One decoder.

    Attributes:
        milliseconds: of decoding per sentence.
        ours: whether it is one of this plugin.
        speedup: over stock with the same beam.
        differ: sentences unlike those of stock with the same beam; None for stock itself.
        parts: part of the loop -> share of the time, for decoders that count it.
    """

    name: str
    milliseconds: float
    sentences: int
    ours: bool
    speedup: float
    differ: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


def timed(system: System, measured: Measurement, stock: Measurement) -> Timed:
    """A decoder beside stock with the same beam, all of them measured on the same sentences."""
    itself = measured is stock
    sentences = len(measured.outputs)
    return Timed(
        LABELS.get(measured.name, measured.name),
        1e3 * measured.total / sentences,
        sentences,
        system.counters is not None,
        stock.total / measured.total,
        None if itself else different(measured, stock),
        table.shares(system.counters, system.drafter),
    )


def against_stock(
    session: Session, method: str, beam: int, batches: Sequence[dict[str, Any]]
) -> list[Timed]:
    """Times stock with this beam, with beam 1 our greedy, and a method, in turn.

    Args:
        method: a ``--decoding`` of the task.
        beam: of stock and of the method.
        batches: of one sentence each.
    """
    wanted = {f"fairseq beam {beam}": "stock", "ours, greedy": "greedy"}
    wanted[LABELS.get(method, f"ours, beam {beam}")] = method
    if beam > 1:
        del wanted["ours, greedy"]
    systems = [of_session(name, session, how, beam) for name, how in wanted.items()]
    found = measure(systems, batches)
    return [timed(system, one, found[0]) for system, one in zip(systems, found, strict=True)]
