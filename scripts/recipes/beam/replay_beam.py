"""Replay of beam search: the prefixes that a recorded search evaluated, on a model of another size with random weights.

As in :mod:`scripts.recipes.gad.replay` the time is that of the other model, the decisions are the recorded ones:
its tables are computed, brought to the host and then taken from the record. Stock writes as many steps as the recorded
search had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.search.beam.generator import BeamGenerator
from fairseq_aggdec.search.beam.library import WindowByWindow
from fairseq_aggdec.windows.draft import Copies
from fairseq_aggdec.windows.tree_window import TreeWindow
from scripts.recipes.gad.replay import force_length


@dataclass
class SearchRecord:
    """What the search of one sentence saw.

    Attributes:
        record: the sentence and its source.
        text, match: what it drafted from, and how, see ``Copies``.
        limit: maximum length.
        rows: output tokens of a prefix -> what was found out about it.
        steps: of the search.
        output: tokens of the best hypothesis.
    """

    record: Record
    text: Sequence[int] = ()
    match: str = ""
    limit: int = 0
    rows: dict[tuple[int, ...], Sequence[float]] = field(default_factory=dict)
    steps: int = 0
    output: list[int] = field(default_factory=list)


class Prefixes(WindowByWindow):
    """The search of one sentence that knows which prefixes a window holds."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.read: list[int] = []  # tokens, by their places

    def prefixes(self, window: TreeWindow) -> list[tuple[int, ...]]:
        """The output tokens of each, in the order of the window."""
        self.read += window.host_tokens()
        return [
            tuple(token for place, token in enumerate(self.read) if place and seen >> place & 1)
            for seen in window.seen
        ]


def record_searches(session: Session, beam: int, limit: int | None) -> list[SearchRecord]:
    """Decodes sentences of a session one by one, and keeps what the searches saw."""
    generator, _ = session.generator("beam", beam)
    assert isinstance(generator, BeamGenerator)
    texts = generator.texts
    assert texts is not None
    found: list[SearchRecord] = []

    def keep_texts(sample: Any, verifier: Any) -> Any:
        copied = texts(sample, verifier)
        found[-1].text, found[-1].match = copied.texts[0], copied.match
        return copied

    class Recording(Prefixes):
        def tables(self, window: TreeWindow, table: Tensor) -> Tensor:
            own = super().tables(window, table)
            found[-1].rows.update(zip(self.prefixes(window), own.tolist(), strict=True))
            return own

    generator.texts, generator.search_type, generator.keeps_trees = keep_texts, Recording, True
    for sample in session.batches(1, limit):
        source = sample["net_input"]["src_tokens"][0].tolist()
        found.append(SearchRecord(Record(sample["id"].item(), source)))
        generator.forget()  # every call is planned alike, whatever was decoded before
        found[-1].output = session.decode(generator, sample)[0]["tokens"].tolist()
        (search,) = generator.searches
        found[-1].steps = search.depth
        found[-1].limit = generator.options.limits(sample["net_input"], session.models).longest
    return found


def replayed(session: Session, beam: int, records: Sequence[SearchRecord]) -> System:
    """Our search on a session whose sentences are the records' in their order, which decides as they say."""
    generator, counters = session.generator("beam", beam)
    assert isinstance(generator, BeamGenerator)
    current = [records[0]]

    class Replayed(Prefixes):
        def tables(self, window: TreeWindow, table: Tensor) -> Tensor:
            super().tables(window, table)
            return torch.tensor([current[0].rows[words] for words in self.prefixes(window)])

    generator.texts = lambda sample, verifier: Copies([current[0].text], current[0].match)
    generator.search_type = Replayed

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        current[0] = records[sample["id"].item()]
        generator.max_len_a, generator.max_len_b = 0, current[0].limit
        generator.forget()
        return [session.decode(generator, sample)[0]["tokens"].tolist()]

    return System(f"search{beam}", decode, counters)


def stock_of_as_many_steps(
    session: Session, beam: int, records: Sequence[SearchRecord], decoding: str = "stock"
) -> System:
    """Stock search, or the loop with ``greedy``, that takes as many steps as each recorded search."""
    generator, counters = session.generator(decoding, beam)

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        force_length(generator, records[sample["id"].item()].steps - 1)
        return [session.decode(generator, sample)[0]["tokens"].tolist()]

    stock = decoding == "stock"
    return System(f"beam{beam}" if stock else decoding, decode, None if stock else counters)
