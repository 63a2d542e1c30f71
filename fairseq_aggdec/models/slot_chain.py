"""``--slot-chain``: the slots of a block, or block heads, hear which token was chosen before them.

Slots are predicted at once, so that each alone may go another way of saying the same ("a man man is" for "a man is" and
"the man is"). Here a slot's features are told the token before it, by a small residual net, after all layers have run:
as in the sequentially dependent heads of Ankner et al. (Hydra, 2024), and in place of the transition scores of
Sun et al. (2019). :class:`~fairseq_aggdec.drafters.chain.FastChain` puts drafts together with it.
"""

import torch
from torch import Tensor, nn


class SlotChain(nn.Module):
    """Features of slots and embeddings of the tokens before them in, features of the slots out.

    Args:
        width: C, of features.
        embedding: E, of embeddings.
    """

    def __init__(self, width: int, embedding: int):
        super().__init__()
        self.read_slot = nn.Linear(width, width)
        self.read_token = nn.Linear(embedding, width, bias=False)
        self.write = nn.Linear(width, width)

    def forward(self, features: Tensor, before: Tensor) -> Tensor:
        """(..., C) and (..., E) -> (..., C)."""
        heard = self.read_slot(features) + self.read_token(before)
        chained: Tensor = features + self.write(heard.relu())
        return chained


class ChainedDecoder:
    """Methods that a decoder with a chain over its slots or heads has: mixed in before its class, ``chain`` set by it.

    Attributes:
        chain: tells slots the tokens before them, None without it.
    """

    chain: SlotChain | None
    embed_scale: float
    embed_tokens: nn.Embedding
    output_projection: nn.Linear

    def chained(self, features: Tensor, before: Tensor) -> Tensor:
        """Features (..., C) of slots that are told the tokens before them (...): (..., C)."""
        assert self.chain is not None
        features_behind: Tensor = self.chain(features, self.embed_scale * self.embed_tokens(before))
        return features_behind


def tokens_before(last: Tensor, block: Tensor) -> Tensor:
    """Tokens before each slot: the last tokens of the prefixes (B,) and blocks (B, k, ...) -> (B, k, ...)."""
    first = last.view(-1, *[1] * (block.dim() - 1)).expand_as(block[:, :1])
    return torch.cat([first, block[:, :-1]], dim=1)
