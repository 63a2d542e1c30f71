"""What a drafter is: the protocol of the loop, and the drafter that proposes nothing (one-by-one decoding)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fairseq_aggdec.decoding.loop import Verification
    from fairseq_aggdec.decoding.state import DecodeState
    from fairseq_aggdec.decoding.verifier import Verifier


class Draft:
    """Proposed tokens of every row, possibly none; tokens that live on the host.

    Args:
        tokens: one sequence of token ids per row. Any id of the target dictionary may be drafted.
    """

    def __init__(self, tokens: Sequence[Sequence[int]]):
        self.tokens = tokens
        self.lengths = [len(row) for row in tokens]

    def after(self, last: Sequence[int], device: torch.device) -> Tensor:
        """The last committed token of each row and then its draft, flat: (B + sum of lengths,) int64."""
        flat = [
            token for first, row in zip(last, self.tokens, strict=True) for token in (first, *row)
        ]
        return torch.tensor(flat, device=device)


class BlockDraft(Draft):
    """Proposed tokens that live on the verifier's device: they are never copied to the host.

    Args:
        block: (B, K) int64.
        lengths: how many tokens of each row count, at most K (host numbers).
    """

    def __init__(self, block: Tensor, lengths: Sequence[int]):
        self.block, self.lengths = block, list(lengths)

    def after(self, last: Sequence[int], device: torch.device) -> Tensor:
        first = torch.tensor(last, device=device).unsqueeze(1)
        tokens = torch.cat([first, self.block], dim=1)  # (B, 1 + K)
        if min(self.lengths) == self.block.size(1):
            return tokens.flatten()
        widths = torch.tensor(self.lengths, device=device).unsqueeze(1) + 1
        return tokens[torch.arange(tokens.size(1), device=device) < widths]


class Drafter(Protocol):
    """Proposes tokens. The output of the loop never depends on what is proposed, only its speed does."""

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        """Takes up a new batch; ``verifier`` has encoded it already."""

    def draft(self, state: DecodeState) -> Draft:
        """Proposes for every row of ``state.rows`` at most ``row.end - row.position`` tokens."""

    def observe(self, verification: Verification, state: DecodeState) -> None:
        """Learns what came of the last draft; ``state.rows`` are still all rows that were verified."""

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps what it knows of the given rows, in this order."""


class EmptyDrafter:
    """Proposes nothing: the loop decodes one by one."""

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        pass

    def draft(self, state: DecodeState) -> Draft:
        return Draft([()] * len(state.rows))

    def observe(self, verification: Verification, state: DecodeState) -> None:
        pass

    def keep_rows(self, rows: Sequence[int]) -> None:
        pass
