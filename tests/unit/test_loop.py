"""The loop itself, and that every generator of ours goes through one ``_generate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from fairseq_aggdec.drafters.draft_only import DraftOnlyGenerator
from fairseq_aggdec.lattice.generator import LatticeGenerator
from fairseq_aggdec.search.aligned import WithAttention
from fairseq_aggdec.search.beam.generator import AlignedBeamGenerator, BeamGenerator
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.generator import CachedGenerator
from fairseq_aggdec.search.greedy.generator import AlignedGenerator, DraftAndVerifyGenerator
from fairseq_aggdec.search.interleaved.generator import InterleavedGenerator
from fairseq_aggdec.search.loop import decode
from fairseq_aggdec.windows.window import DecoderOutput


@dataclass
class CountingDown:
    """A search and its model in one: each window is a number, and one row leaves with every call."""

    rows: list[int]
    counters: Counters = field(default_factory=Counters)
    moves: bool = True
    log: list[Any] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def next_window(self) -> int:
        self.log.append(("next_window", len(self.rows)))
        return len(self.rows)

    def read(self, window: int) -> DecoderOutput:
        self.log.append(("read", window))
        return DecoderOutput(torch.full((1,), float(window)), [])

    def update(self, window: int, output: DecoderOutput) -> str | None:
        self.log.append(("update", window, output.logits.item()))
        self.rows.pop()
        self.seen.append(self.counters.calls)
        return f"{len(self.rows)} rows" if self.moves else None

    def keep(self, kept: str) -> None:
        self.log.append(("keep", kept))


def test_the_order_of_an_iteration() -> None:
    search, counters = CountingDown([7, 8]), Counters()
    decode(search, search, counters)
    assert search.log == [
        *[("next_window", 2), ("read", 2), ("update", 2, 2.0), ("keep", "1 rows")],
        *[("next_window", 1), ("read", 1), ("update", 1, 1.0), ("keep", "0 rows")],
    ]
    assert counters.calls == 2


def test_a_model_that_keeps_all_is_told_nothing() -> None:
    search = CountingDown([7, 8], moves=False)
    decode(search, search, search.counters)
    assert [name for name, *_ in search.log] == ["next_window", "read", "update"] * 2


def test_a_call_is_counted_when_its_iteration_ends() -> None:
    search = CountingDown([7, 8])
    decode(search, search, search.counters)
    assert search.seen == [0, 1]  # what the first iteration waits for belongs to it


def test_without_rows_nothing_is_read() -> None:
    search, counters = CountingDown([]), Counters()
    decode(search, search, counters)
    assert search.log == [] and counters.calls == 0


@pytest.mark.parametrize(
    "kind",
    [
        DraftAndVerifyGenerator,
        DraftOnlyGenerator,
        BeamGenerator,
        InterleavedGenerator,
        LatticeGenerator,
        AlignedGenerator,
        AlignedBeamGenerator,
    ],
)
def test_every_generator_decodes_a_batch_in_the_same_course(kind: type) -> None:
    defining = [base for base in kind.__mro__ if "_generate" in vars(base)]
    assert CachedGenerator in defining
    before = defining[: defining.index(CachedGenerator)]
    assert before in ([], [WithAttention])  # which adds attention afterwards
