"""Drafting with the verifier's own extra heads (Stern et al., section 4): verifying one block predicts the next.

The heads read the decoder's features at the position of each row's last accepted token. Head 1's token there is the
correction token that the loop emits anyway; those of heads 2 to k are the next draft. So an iteration is one decoder
call.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fairseq_aggdec.decoding.draft import AS_VERIFIED, BlockDraft, Draft, Proposing, Verification
from fairseq_aggdec.decoding.state import DecodeState
from fairseq_aggdec.decoding.verifier import Verifier


class BlockwiseHeadsDrafter:
    """Drafts the proposals of heads 2 to k; nothing in the first iteration, which has no features yet.

    Args:
        block_size: k, at most the number of trained heads; an iteration gains up to k tokens.
        proposing: how proposals are computed.
    """

    def __init__(self, block_size: int, proposing: Proposing = AS_VERIFIED):
        self.block_size, self.proposing = block_size, proposing

    def start(self, sample: Mapping, verifier: Verifier, state: DecodeState) -> None:
        self.verifier = verifier
        self.features: Tensor | None = None  # (B, C), what the heads read

    def draft(self, state: DecodeState) -> Draft:
        if self.features is None or self.block_size == 1:
            return Draft([()] * len(state.rows))
        # (B, k - 1)
        proposals = self.verifier.propose(self.features, self.block_size, self.proposing)
        room = [row.end - row.position for row in state.rows]
        return BlockDraft(proposals, [min(self.block_size - 1, left) for left in room])

    def observe(self, verification: Verification, state: DecodeState) -> None:
        at, first = [], 0
        for accepted, width in zip(verification.accepted, verification.window.widths, strict=True):
            at.append(first + accepted)
            first += width
        features = self.verifier.features[0]
        self.features = features[torch.tensor(at, device=features.device)]

    def keep_rows(self, rows: Sequence[int]) -> None:
        assert self.features is not None
        self.features = self.features[torch.tensor(rows, device=self.features.device)]
