"""What a drafter proposes, and what the verifier makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_aggdec.decoding.window import Window


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


@dataclass(frozen=True)
class Proposing:
    """How a model computes what it proposes, which need not be as exact as what verifies it.

    Attributes:
        types: choose among so many first types of the dictionary; 0: among all.
        int8: compute in 8 bits, on CPU in fp32, where that is faster.
    """

    types: int = 0
    int8: bool = False


AS_VERIFIED = Proposing()


@dataclass
class Verification:
    """What one iteration found out.

    Attributes:
        window: the positions that were verified.
        tokens: (N,) what each position would emit, on the device; only what stands in ``emitted`` counts.
        drafted: number of drafted tokens per row.
        accepted: number of drafted tokens that stand, per row (the bifurcation).
        emitted: tokens gained per row: the accepted ones and the verifier's correction token, nothing after ``</s>``.
    """

    window: Window
    tokens: Tensor
    drafted: list[int]
    accepted: list[int]
    emitted: list[list[int]]
