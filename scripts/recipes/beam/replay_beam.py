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
from fairseq_aggdec.drafters.copy.copy_paths import CopyPaths
from fairseq_aggdec.search.beam.batch import BeamSearch
from fairseq_aggdec.search.beam.budget import Budget, Guess
from fairseq_aggdec.search.beam.generator import BeamGenerator
from scripts.recipes.gad.replay import force_length


class SteadyBudget(Budget):
    """Plans every call alike, whatever was decoded before."""

    def observe(self, guess: Guess, used: bool) -> None:
        pass

    def gained(self, worth: Sequence[tuple[float, float]]) -> None:
        pass


@dataclass
class SearchRecord:
    """What the search of one sentence saw.

    Attributes:
        record: the sentence and its source.
        text, match: what it drafted from, and how, see ``CopyPaths``.
        limit: maximum length.
        rows: output tokens of a prefix -> what was found out about it.
        steps: of the search.
        output: tokens of the best hypothesis.
    """

    record: Record
    text: list[int] = field(default_factory=list)
    match: str = ""
    limit: int = 0
    rows: dict[tuple[int, ...], Sequence[float]] = field(default_factory=dict)
    steps: int = 0
    output: list[int] = field(default_factory=list)


def record_searches(session: Session, beam: int, limit: int | None) -> list[SearchRecord]:
    """Decodes sentences of a session one by one, and keeps what the searches saw."""
    generator, _ = session.generator("beam", beam)
    assert isinstance(generator, BeamGenerator)
    texts = generator.texts
    assert texts is not None
    generator.budget = SteadyBudget("cpu", beam)
    found: list[SearchRecord] = []

    def keep_texts(sample: Any, verifier: Any) -> Any:
        copied = texts(sample, verifier)
        found[-1].text, found[-1].match = copied[0].tokens[1:], copied[0].match
        return copied

    class Recording(BeamSearch):
        def tables(self, table: Tensor) -> Any:
            tree = self.rows[0].tree
            for node, row in zip(self.requests[0], table.tolist(), strict=True):
                found[-1].rows[tuple(tree.words(node))] = row
            return super().tables(table)

    generator.texts, generator.search_type = keep_texts, Recording
    for sample in session.batches(1, limit):
        source = sample["net_input"]["src_tokens"][0].tolist()
        found.append(SearchRecord(Record(sample["id"].item(), source)))
        found[-1].output = session.decode(generator, sample)[0]["tokens"].tolist()
        (search,) = generator.searches
        found[-1].steps, found[-1].limit = search.depth, search.rules.limit
    return found


def replayed(session: Session, beam: int, records: Sequence[SearchRecord]) -> System:
    """Our search on a session whose sentences are the records' in their order, which decides as they say."""
    generator, counters = session.generator("beam", beam)
    assert isinstance(generator, BeamGenerator)
    generator.budget = SteadyBudget("cpu", beam)
    current = [records[0]]

    class Replayed(BeamSearch):
        def tables(self, table: Tensor) -> Any:
            tree = self.rows[0].tree
            known = [current[0].rows[tuple(tree.words(node))] for node in self.requests[0]]
            return super().tables(torch.tensor(known))

    eos = generator.eos
    generator.texts = lambda sample, verifier: [CopyPaths(current[0].text, eos, current[0].match)]
    generator.search_type = Replayed

    def decode(sample: dict[str, Any]) -> list[list[int]]:
        current[0] = records[sample["id"].item()]
        generator.max_len_a, generator.max_len_b = 0, current[0].limit
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
