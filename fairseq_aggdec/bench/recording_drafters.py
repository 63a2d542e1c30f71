"""Two drafters for measurements: one that writes down what another does, one that does the same again elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fairseq_aggdec.bench.recording import Iteration, Record
from fairseq_aggdec.engine.graphs.window_graphs import GraphMemory, grid_end, grid_rows
from fairseq_aggdec.engine.verifier import Verifier
from fairseq_aggdec.search.acceptance import NO_DRAFT, Acceptance
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.drafter import DeviceDrafter, Drafter, DrafterAround, EmptyDrafter
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Draft, Verdict
from fairseq_aggdec.windows.transfer import Watch, send_into
from fairseq_aggdec.windows.tree_window import DraftedTree


class RecordingDrafter(DrafterAround):
    """Lets ``drafter`` propose and keeps what was proposed and what became of it.

    The loop must accept with :meth:`watched`, from which the verifier's choices are known.

    Attributes:
        records: one per sentence, in the order in which decoding began.
    """

    def __init__(self, drafter: Drafter, pad: int):
        super().__init__(drafter)
        self.pad = pad
        self.records: list[Record] = []

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        super().start(sample, verifier, state)
        sources = sample["net_input"]["src_tokens"].tolist()
        self.open = [
            Record(sentence, [token for token in source if token != self.pad])
            for sentence, source in zip(sample["id"].tolist(), sources, strict=True)
        ]
        self.records += self.open

    def watched(self, accept: Acceptance) -> Acceptance:
        """``accept`` as it is; relaxed acceptance hides from the loop's result what the verifier would have written."""

        def watching(
            logits: Tensor, choices: Tensor, drafted: Tensor, tree: DraftedTree | None = None
        ) -> Tensor:
            self.choices = choices
            return accept(logits, choices, drafted, tree)

        return watching

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        window = verdict.window
        # Where nothing was drafted the loop has nothing to accept.
        alone = window.width == 1
        predicted = [choice for (choice,) in verdict.emitted] if alone else self.choices.tolist()
        read = window.host_tokens()
        first = 0
        for place, (row, width, accepted, emitted) in enumerate(
            zip(state.rows, window.widths, verdict.accepted, verdict.emitted, strict=True)
        ):
            order = list(range(first, first + width))
            if verdict.paths is not None:  # of a tree what stands comes first
                path = verdict.paths[place]
                order = path + [slot for slot in order if slot not in path]
            self.open[row.index].iterations.append(
                Iteration(
                    [read[slot] for slot in order[1:]],
                    [predicted[slot] for slot in order],
                    accepted,
                    list(emitted),
                )
            )
            first += width
        super().observe(verdict, state)


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
        self.needs_cached_decoder = self.pace.needs_cached_decoder
        self.starts_beside = self.pace.starts_beside
        self.longest = max(
            (len(i.drafted) for r in records.values() for i in r.iterations), default=0
        )
        self.table, self.generation = torch.empty(0, 0, 0, dtype=torch.long), 0
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
        self.sentences = sample["id"].tolist()
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
        positions = grid_end(max(sum(len(i.emitted) for i in rounds) for rounds in recorded) + 1)
        room = grid_rows(len(recorded)) + 1, positions, size
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
        places, positions = (size - 1 for size in self.table.shape[:2])
        own, base = owners.clamp(max=places), rows.base.clamp(max=positions)
        return self.table[own, base, : shape.width - 1]

    def observe(self, verdict: Verdict, state: DecodeState) -> None:
        self.pace.observe(replace(verdict, whole=False), state)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.pace.keep_rows(rows)
