"""``--decoding nar``: a non-autoregressive drafter on its own, block after block, with nobody to verify it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.graphs.window_graphs import GraphMemory
from fairseq_aggdec.kernels.gpu.largest import first_largest
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.engines import DRAFT_ONLY
from fairseq_aggdec.search.greedy.generator import DraftAndVerifyGenerator
from fairseq_aggdec.search.greedy.on_device import DeviceLoop
from fairseq_aggdec.search.greedy.search import commit
from fairseq_aggdec.search.loop import decode
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import Batch, DecodeState, Row
from fairseq_aggdec.windows.draft import Kept, Verdict
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import DecoderOutput, Window


class DraftOnlyLoop(DeviceLoop):
    """The loop on the device of a drafter that nobody verifies: a row gains what its slots say, up to ``</s>``."""

    drafter: NarDrafter

    def captures(self) -> bool:
        return self.drafter.captures

    def _proposed_from(self) -> tuple[int, Tensor]:
        return 0, next(self.drafter.model.parameters())

    def _rooms(self, end: int) -> list[GraphMemory]:
        return []  # the drafter's alone

    def _keep_rows(self, rows: Sequence[int]) -> None:
        self.drafter.keep_rows(rows)

    def _iterate(self, board: Board, rows: Rows, shape: Shape) -> None:
        count, size = len(rows.owners), shape.width - 1
        logits = self.drafter.logits_on_device(board, rows.owners, rows, shape).flatten(0, 1)
        if self.verifier.temperature != 1.0:
            logits = logits.float().div_(self.verifier.temperature)  # (R k, V)
        # Padding, which is in no output, for what is not known: it repeats no n-gram.
        unknown = rows.owners.new_full((count, size - 1), self.rules.pad)
        asked = self.books.begin(board, rows, unknown, self.drafter)
        asked = asked._replace(length=rows.owners.new_full((count,), size))
        self.books.end(board, rows, asked, logits, None, alone=True)


class DraftOnlyGenerator(DraftAndVerifyGenerator):
    """Every token that the drafter proposes stands, up to its ``</s>``; scores are the drafter's.

    The generation options hold as for the verifier, but for ``--no-repeat-ngram-size`` within a block, whose tokens are
    chosen at once. A chain (``--slot-chain``) goes on from the tokens that it chooses itself, before the options have
    changed any.
    """

    drafter: NarDrafter
    asked_search = DRAFT_ONLY
    verified = False

    @cached_property
    def on_device(self) -> type[DeviceLoop]:
        return DraftOnlyLoop

    @property
    def _reader(self) -> NarDrafter:
        return self.drafter

    def gap(self) -> None:
        """Stock fairseq would decode with the verifier, whose output is another."""

    def _prepare(self) -> None:
        if self.drafter.model.shares_encoder:  # nothing else of the verifier runs
            self.verifier.prepare()
        self.drafter.prepare(self.verifier)

    def _start(self, batch: Batch, state: DecodeState, limits: Limits) -> bool:
        with self.counters.clock("encoder"):
            if self.drafter.model.shares_encoder:
                for member in self.verifier.members:  # their encoders: nothing is verified
                    member.start(batch.net_input, limits.capacity)
        with self.counters.clock("draft"):
            self.drafter.start(batch.sample, self.verifier, state)
        if not self.drafter.readable:
            raise ValueError(
                f"a source of {batch.source.size(1)} tokens is longer than the drafter of --drafter-path can read; "
                "--decoding gad leaves it to the verifier"
            )
        for row in state.rows:
            row.end = min(row.end, self.drafter.longest)
        return False

    def _search_on_host(self, state: DecodeState, drafter: Any, counters: Counters) -> None:
        search = DraftOnlySearch(drafter, self.rules, state, counters, self.temperature)
        decode(search, search, counters)


@dataclass
class DraftOnlySearch:
    """Decodes every row of ``state`` to its end (in place) with what the drafter says, in the place of a model."""

    drafter: NarDrafter
    rules: Rules
    state: DecodeState
    counters: Counters
    temperature: float

    @property
    def rows(self) -> list[Row]:
        return self.state.rows

    def next_window(self) -> Window:
        # Padding, which is in no output, for what is not known: it repeats no n-gram.
        shape = len(self.rows), self.drafter.draft_length.plan(len(self.rows))
        return self._window(torch.full(shape, self.rules.pad, device=self.state.device))

    def read(self, window: Window) -> DecoderOutput:
        """Logits (B * k, V) of a block of k slots for each row."""
        logits = self.drafter.logits(self.state, window.width).float().flatten(0, 1)
        return DecoderOutput(logits.div_(self.temperature), [])

    def keep(self, kept: Kept) -> None:
        if kept.rows:
            self.drafter.keep_rows(kept.rows)

    def update(self, window: Window, output: DecoderOutput) -> Kept:
        logits = output.logits
        choices = first_largest(self.rules.applied(logits, window, self.state))
        blocks = choices.view(len(self.rows), -1)
        emitted = blocks.tolist()
        for block in emitted:
            if self.rules.eos in block:
                del block[block.index(self.rules.eos) + 1 :]
        drafted, accepted = [blocks.size(1)] * len(emitted), [len(tokens) for tokens in emitted]
        kept = torch.tensor([n < len(row) for row in emitted for n in range(blocks.size(1))])
        scores = self.rules.scores(logits, choices)[kept.to(logits.device)]
        verdict = Verdict(self._window(blocks), drafted, accepted, emitted, scores=scores)
        commit(verdict, self.rules, self.state)
        self.counters.add(verdict)
        return Kept(self.state.release_finished())

    def _window(self, blocks: Tensor) -> Window:
        """What a verifier would read to write ``blocks`` (B, k): a row's last committed token, then its block."""
        last = to_device([[row.tokens[-1]] for row in self.rows], blocks.device)
        tokens = torch.cat([last, blocks[:, :-1]], dim=1)
        starts = [row.position for row in self.rows]
        return Window(tokens.flatten(), starts, [blocks.size(1)] * len(starts))
