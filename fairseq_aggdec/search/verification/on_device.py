"""One iteration on the device in PyTorch's operators: lay out the window, then verify it and commit to the board.

Nothing here waits for the device. :mod:`~fairseq_aggdec.search.verification.fused` does the same in three kernels.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.search.acceptance import NO_DRAFT, Acceptance, trusting
from fairseq_aggdec.search.board import Board, Rows
from fairseq_aggdec.search.drafter import DeviceDrafter
from fairseq_aggdec.search.rules import Rules, Spots


class WindowSlots(NamedTuple):
    """Slots that the verifier reads in an iteration.

    Attributes:
        tokens: (R, W) int64, the last token of each row, then its draft. Unused slots repeat the last one that is used.
        outputs: (R, W) int64, their positions, which are the output indices of what follows them.
        length: (R,) int64, how many tokens are drafted; None: nothing is drafted for any row.
    """

    tokens: Tensor
    outputs: Tensor
    length: Tensor | None


@dataclass
class Bookkeeping:
    """Begins and ends iterations.

    Attributes:
        rules: generation options.
        accept: which drafted tokens are accepted.
    """

    rules: Rules
    accept: Acceptance

    @property
    def symbols(self) -> gpu.logits.RuledTokens | None:
        """Tokens without which the parts of the logits are to be looked at before :meth:`end`; None: they are not."""
        return None

    def begin(
        self, board: Board, rows: Rows, block: Tensor | None, drafter: DeviceDrafter
    ) -> WindowSlots:
        """Prepares what the verifier reads.

        Args:
            board, rows: the sentences, and those that are decoded.
            block: (R, W - 1) int64, the drafts; None: nothing is drafted.
            drafter: has made them.
        """
        last, base = board.tokens[rows.owners, rows.base], rows.base.unsqueeze(1)
        if block is None:
            return WindowSlots(last.unsqueeze(1), base, None)
        idle = rows.ended
        if drafter.reads_features:
            idle = idle | (rows.rounds == 0)
        length = (rows.end - rows.base).clamp(max=block.size(1)).masked_fill_(idle, 0)
        if drafter.ragged:
            length = torch.minimum(length, (block != NO_DRAFT).sum(1))
        slots = torch.arange(block.size(1) + 1, device=last.device)
        used = torch.minimum(slots, length.unsqueeze(1))  # (R, W)
        tokens = torch.cat([last.unsqueeze(1), block], dim=1).gather(1, used)
        return WindowSlots(tokens, base + used, length)

    def end(
        self,
        board: Board,
        rows: Rows,
        window_slots: WindowSlots,
        logits: Tensor,
        features: Tensor | None,
        parts: Tensor | None = None,
    ) -> None:
        """Verifies the window and commits the result to the board.

        Args:
            board, rows, window_slots: of :meth:`begin`.
            logits: (R W, V) of the verifier, in its precision; changed in place.
            features: (R W, C) that the drafter will read; None: it reads none.
            parts: what is known of the logits, see :class:`~fairseq_aggdec.windows.window.DecoderOutput`.
        """
        tokens, outputs, length = window_slots
        logits = logits.float()
        log_probs = logits.log_softmax(-1)
        rules, written = self.rules, None
        if rules.reads_written:
            written = board.tokens.index_select(0, rows.owners).scatter_(1, outputs, tokens)
        end, floor, strict_floor = (
            x.unsqueeze(1) for x in (rows.end, rows.floor, rows.strict_floor)
        )
        spots = Spots(outputs, written, end, floor, strict_floor, rows.prefix)
        forced = rules.forced(spots, board.forced(rows.owners, outputs))
        if rules.own_rules:
            spots = spots._replace(forced=forced != rules.pad)
        penalties = rules.penalties(spots)
        rules.choose_from(logits, spots, penalties, forced)
        if length is None:
            emitted = gpu.largest.first_largest(logits).unsqueeze(1)  # (R, 1)
            checked = kept = None
        else:
            emitted, stood, kept = self._take(logits, tokens, length)
            checked = length, stood
            if features is not None:
                self._remember(board, rows, features, stood)
        scores = rules.scores(log_probs, emitted, spots, penalties)
        goes_on = ~rows.ended.unsqueeze(1)
        kept = goes_on if kept is None else kept & goes_on
        ended = (kept & (emitted == self.rules.eos)).any(1)
        board.commit(rows, emitted, kept, scores, checked, ended)

    def _take(
        self, logits: Tensor, tokens: Tensor, length: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The token that each position emits (R, W), the number of accepted tokens (R,), and which emitted tokens are
        committed (R, W): those up to the correction token and up to ``</s>``."""
        slots = torch.arange(tokens.size(1), device=tokens.device)
        choices = gpu.largest.first_largest(logits)
        if self.accept is trusting:
            emitted = choices.view_as(tokens)
            ends = (emitted == self.rules.eos).long()
            return emitted, length, ends.cumsum(1) == ends
        beyond = slots >= length.unsqueeze(1)
        drafted = tokens.roll(-1, 1).masked_fill_(beyond, NO_DRAFT)
        accepted = self.accept(logits, choices, drafted.flatten()).view_as(tokens)
        emitted = torch.where(accepted, drafted, choices.view_as(tokens))
        stood = accepted.long().cumprod(1).sum(1)
        ends = (emitted == self.rules.eos).long()
        return emitted, stood, (slots <= stood.unsqueeze(1)) & (ends.cumsum(1) == ends)

    def _remember(self, board: Board, rows: Rows, features: Tensor, stood: Tensor) -> None:
        """Puts the features of each row's last token, of (R W, C), on the board."""
        features = features.view(len(rows.owners), -1, board.features.size(1))
        places = torch.arange(len(rows.owners), device=stood.device)
        board.features.index_copy_(0, rows.owners, features[places, stood])
