"""``--decoding nar``: a non-autoregressive drafter on its own, block after block, with nobody to verify it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.graphs.window_graphs import Memory
from fairseq_aggdec.kernels.largest import first_largest
from fairseq_aggdec.options.options import Limits
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.device_loop import DeviceLoop, Emitted
from fairseq_aggdec.search.generator import DraftAndVerifyGenerator, Request
from fairseq_aggdec.search.guards import exclusive
from fairseq_aggdec.search.loop import commit
from fairseq_aggdec.search.rules import Rules
from fairseq_aggdec.search.state import DecodeState
from fairseq_aggdec.windows.draft import Verdict
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import Window


class DraftOnlyLoop(DeviceLoop):
    """The loop on the device of a drafter that nobody verifies: a row gains what its slots say, up to ``</s>``."""

    drafter: NarDrafter

    def captures(self) -> bool:
        return self.drafter.captures()

    def _proposed_from(self) -> tuple[int, Tensor]:
        return 0, next(self.drafter.model.parameters())

    def _rooms(self, end: int) -> list[Memory]:
        return []  # the drafter's alone

    def _keep_rows(self, rows: Sequence[int]) -> None:
        self.drafter.keep_rows(rows)

    def _emitted(self, board: Board, owners: Tensor, rows: Rows, shape: Shape) -> Emitted:
        slots = torch.arange(shape.width - 1, device=owners.device)
        # (R, k); behind the last place of the board nothing counts any more
        outputs = (rows.base.unsqueeze(1) + slots).clamp_(max=board.room[1] - 1)
        logits = self.drafter.logits_on_device(board, owners, rows, shape).float().flatten(0, 1)
        logits /= self.verifier.temperature  # (R k, V)
        log_probs = logits.log_softmax(-1)
        shown = None
        if self.rules.no_repeat_ngram_size:
            # Padding, which is in no output, for what is not known: it repeats no n-gram.
            last = board.tokens[owners, rows.base].unsqueeze(1)
            shown = F.pad(last, (0, outputs.size(1) - 1), value=self.rules.pad)
        self._apply_rules(board, owners, rows, logits, outputs, shown)
        emitted = first_largest(logits).view_as(outputs)
        ends = (emitted == self.rules.eos).long()
        scores = self.rules.scores_on_device(log_probs, emitted, outputs, rows.end)
        drafted = torch.full_like(rows.base, shape.width - 1)
        return emitted, ends.cumsum(1) == ends, scores, (drafted, drafted)


class DraftOnlyGenerator(DraftAndVerifyGenerator):
    """Every token that the drafter proposes stands, up to its ``</s>``; scores are the drafter's.

    The generation options hold as for the verifier, but for ``--no-repeat-ngram-size`` within a block, whose tokens are
    chosen at once. A chain (``--slot-chain``) goes on from the tokens that it chooses itself, before the options have
    changed any.
    """

    drafter: NarDrafter
    on_device = DraftOnlyLoop

    @exclusive
    def prepare(self) -> None:
        if self.drafter.model.shares_encoder:  # nothing else of the verifier runs
            self.verifier.prepare()
        self.drafter.prepare(self.verifier)

    def _start(self, request: Request, state: DecodeState, limits: Limits) -> bool:
        with self.counters.clock("encoder"):
            if self.drafter.model.shares_encoder:
                for member in self.verifier.members:  # their encoders: nothing is verified
                    member.start(request.net_input, limits.capacity)
        with self.counters.clock("draft"):
            self.drafter.start(request.sample, self.verifier, state)
        if not self.drafter.readable:
            raise ValueError(
                f"a source of {request.source.size(1)} tokens is longer than the drafter of --drafter-path can read; "
                "--decoding gad leaves it to the verifier"
            )
        for row in state.rows:
            row.end = min(row.end, self.drafter.longest)
        return False

    def _loop_on_host(self, state: DecodeState) -> None:
        draft_only(self.drafter, self.rules, state, self.counters, self.temperature)


def draft_only(
    drafter: NarDrafter,
    rules: Rules,
    state: DecodeState,
    counters: Counters,
    temperature: float = 1.0,
) -> None:
    """Decodes every row of ``state`` to its end (in place) with what the drafter says."""
    while state.rows:
        block_size = drafter.block_size.choose(len(state.rows))
        with counters.clock("draft"):
            logits = drafter.logits(state, block_size).float().flatten(0, 1)  # (B * k, V)
            logits /= temperature
        with counters.clock("other"):
            # Padding, which is in no output, for what is not known: it repeats no n-gram.
            unknown = torch.full((len(state.rows), block_size), rules.pad, device=logits.device)
            with rules.applied(logits, _window(state, unknown), state) as ruled:
                choices = first_largest(ruled)
            blocks = choices.view(-1, block_size)
            emitted = [_until_end(block, rules.eos) for block in blocks.tolist()]
            verdict = Verdict(
                _window(state, blocks),
                choices,
                drafted=[block_size] * len(emitted),
                accepted=[len(tokens) for tokens in emitted],
                emitted=emitted,
            )
            commit(verdict, rules, logits, state)
            counters.add(verdict)
            keep = state.release_finished()
            if keep:
                drafter.keep_rows(keep)


def _window(state: DecodeState, blocks: Tensor) -> Window:
    """What a verifier would read to write ``blocks`` (B, k): a row's last committed token, then its block."""
    last = to_device([[row.tokens[-1]] for row in state.rows], blocks.device)
    tokens = torch.cat([last, blocks[:, :-1]], dim=1)
    starts = [row.position for row in state.rows]
    return Window(tokens.flatten(), starts, [blocks.size(1)] * len(starts))


def _until_end(tokens: Sequence[int], eos: int) -> list[int]:
    block = list(tokens)
    return block[: block.index(eos) + 1] if eos in block else block
