"""Replay: the iterations of a recorded run on models of other sizes with random weights.

What costs time in decoding is how many tokens each call reads and how many calls there are, not what the weights are.
So a model of another size gets sources of the recorded lengths, every system writes as many tokens as the recorded
output had, and the method's drafts are as long and as right as they were (see ``ReplayDrafter``). What drafts with a
model runs, too, at that size: a drafter with the verifier's encoder, or heads on the verifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.api.session import Session
from fairseq_aggdec.bench.recording import Record
from fairseq_aggdec.bench.timing import System
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.copy.input_copy import InputCopyDrafter
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.graphs.window_graphs import ROWS, GraphMemory, grid_end, grid_rows
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.acceptance import NO_DRAFT
from fairseq_aggdec.search.board import POSITION, Board, Rows, Shape
from fairseq_aggdec.search.drafter import DeviceDrafter, Drafter, EmptyDrafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.transfer import Watch, send_into


class ReplayDrafter(DeviceDrafter):
    """Forces the recorded draft lengths and bifurcations on another model, whose output is known.

    Each draft has as many right tokens as were accepted in the recording, then a wrong one. The output is not
    touched: it stays the model's own, and a verifier that accepted anything else would give another one. On a GPU the
    drafts of a batch are a table on the device, so that the loop there is replayed too.

    Args:
        records: sentence -> recording.
        outputs: sentence -> the model's greedy output, ``</s>`` included, as long as the recorded one.
        wrong: two tokens that are not special; one of them differs from any right token.
        pace: drafts as well, and what it drafts is thrown away: a replay takes its time.

    Attributes:
        table: (S + 1, T, K) int64, the draft behind each position of each sentence, ``NO_DRAFT`` where there is none.
        generation, sources: see :class:`~fairseq_aggdec.engine.graphs.window_graphs.GraphMemory`.
    """

    ragged = True

    def __init__(
        self,
        records: Mapping[int, Record],
        outputs: Mapping[int, Sequence[int]],
        wrong: tuple[int, int],
        pace: Drafter | None = None,
    ):
        self.records, self.outputs, self.wrong = records, outputs, wrong
        self.pace = pace or EmptyDrafter()
        self.starts_beside = self.pace.starts_beside
        self.longest = max(
            (len(i.drafted) for r in records.values() for i in r.iterations), default=0
        )
        self.table, self.generation = torch.empty(0, 0, 0, dtype=torch.long), 0
        self.room = 0, 0  # of the largest board so far
        self.filled: dict[tuple[int, ...], Tensor] = {}

    @property
    def reads_features(self) -> bool:  # type: ignore[override]
        return isinstance(self.pace, DeviceDrafter) and self.pace.reads_features

    @property
    def watches(self) -> Sequence[Watch]:
        return self.pace.watches

    @property
    def sources(self) -> int:
        return self.table.size(1)

    def reads(self, sample: Mapping) -> Sequence[Tensor]:
        return self.pace.reads(sample)

    def prepare(self, verifier: Verifier) -> None:
        self.pace.prepare(verifier)

    def at_the_pace_of(self, drafter: Drafter) -> ReplayDrafter:
        return ReplayDrafter(self.records, self.outputs, self.wrong, drafter)

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.sentences, count = sample["id"].tolist(), len(state.rows)
        rows = 1 + (count if count > ROWS[-1] else grid_rows(count))
        length = grid_end(max(row.end for row in state.rows) + 3)
        self.room = max(self.room[0], rows), max(self.room[1], length)
        self.pace.start(sample, verifier, state)

    def draft(self, state: DecodeState) -> Draft:
        self.pace.draft(state)
        return Draft([self._draft(self.sentences[row.index], row.iterations) for row in state.rows])

    def _draft(self, sentence: int, round_: int) -> list[int]:
        iterations = self.records[sentence].iterations
        if round_ >= len(iterations):  # rounding gave a tie to the other side: finish one by one
            return []
        position = sum(len(iteration.emitted) for iteration in iterations[:round_])
        iteration = iterations[round_]
        right = self.outputs[sentence][position : position + iteration.accepted]
        draft = list(right)
        for offset in range(len(right), len(iteration.drafted)):
            expected = self.outputs[sentence][position + offset : position + offset + 1]
            draft.append(self.wrong[list(expected) == [self.wrong[0]]])
        return draft

    def start_on_device(self, state: DecodeState) -> int | None:
        if not isinstance(self.pace, DeviceDrafter):
            return None
        size = self.pace.start_on_device(state)
        if isinstance(self.pace, EmptyDrafter):
            size = self.longest
        if size:
            self._fill(state, size)
        return size

    def _fill(self, state: DecodeState, size: int) -> None:
        """Writes the drafts of a batch to the table; a captured graph reads it where it is."""
        recorded = [self.records[sentence].iterations for sentence in self.sentences]
        written = max(sum(len(i.emitted) for i in rounds) for rounds in recorded)
        room = self.room[0], max(self.room[1], grid_end(written + 1)), size
        if any(a > b for a, b in zip(room, self.table.shape, strict=True)):
            larger = [max(pair) for pair in zip(room, self.table.shape, strict=True)]
            self.table = torch.empty(larger, dtype=torch.long, device=state.device)
            self.generation += 1
        batch = (*self.sentences, size, *self.table.shape)
        if batch not in self.filled:  # once: it takes time that no drafter takes
            self.filled[batch] = self._laid_out(size)
        send_into(self.table, self.filled[batch])

    def _laid_out(self, size: int) -> Tensor:
        """The table of the batch, on the host."""
        drafts = torch.full(tuple(self.table.shape), NO_DRAFT)
        for place, sentence in enumerate(self.sentences):
            position = 0
            for number, iteration in enumerate(self.records[sentence].iterations):
                draft = self._draft(sentence, number)[:size]
                drafts[place, position, : len(draft)] = torch.tensor(draft, dtype=torch.long)
                position += len(iteration.emitted)
        return drafts

    def reserve(self, shape: Shape) -> Sequence[GraphMemory]:
        assert isinstance(self.pace, DeviceDrafter)
        return [*self.pace.reserve(shape), self]

    def block(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Tensor:
        assert isinstance(self.pace, DeviceDrafter)
        self.pace.block(board, owners, rows, shape)
        base = board.numbers[:, POSITION].index_select(0, owners)  # as few launches as can be
        return self.table[owners, base, : shape.width - 1]

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        self.pace.observe(verdict, state)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.pace.keep_rows(rows)


def lengths(records: Sequence[Record]) -> dict[int, int]:
    """Sentence of the replayed set -> tokens to write, ``</s>`` not counted."""
    return {index: len(record.output) - 1 for index, record in enumerate(records)}


def replay_drafter(session: Session, records: Sequence[Record]) -> ReplayDrafter:
    """The drafter for a session on a prepared folder; decodes the set once with our greedy to know what is right."""
    generator, _ = session.generator("greedy")
    to_write = lengths(records)
    outputs: dict[int, list[int]] = {}
    for sample in session.batches(1):
        sentence = sample["id"].item()
        force_length(generator, to_write[sentence])
        outputs[sentence] = session.decode(generator, sample)[0]["tokens"].tolist()
    first = session.task.target_dictionary.nspecial
    return ReplayDrafter(dict(enumerate(records)), outputs, (first, first + 1))


def force_length(generator: Any, tokens: int) -> None:
    """Makes a generator, or another engine by the options of generation, write exactly so many tokens and ``</s>``."""
    generator.min_len = generator.max_len_b = tokens
    generator.max_len_a = 0


def force_drafts(system: System, drafter: ReplayDrafter, cuda: bool) -> None:
    """Has a method of ours that drafts verify what was recorded; what drafts with a model runs as well."""
    if system.generator is None or isinstance(system.drafter, EmptyDrafter):
        return
    kinds = (NarDrafter, BlockwiseHeadsDrafter, *((InputCopyDrafter,) if cuda else ()))
    paced = isinstance(system.drafter, kinds)
    system.generator.drafter = drafter.at_the_pace_of(system.drafter) if paced else drafter
