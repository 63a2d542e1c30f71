"""``--slot-chain``: the slots of a block hear which token was chosen before them.

Slots are predicted at once, so that each alone may go another way of saying the same ("a man man is" for "a man is" and
"the man is"). Here a slot's features are told the token before it, by a small residual net, after all layers have run:
as in the sequentially dependent heads of Ankner et al. (Hydra, 2024), and in place of the transition scores of
Sun et al. (2019). Only the most likely tokens of every slot are looked at, all pairs of them at once, so that drafting
still takes one pass and no loop over a network.
"""

from typing import Any

import torch
from torch import Tensor, nn

CANDIDATES = 8  # tokens of a slot that a draft is put together from


class SlotChain(nn.Module):
    """Features of a slot and the token before it in, features of the slot out.

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
        """(..., k, C) and embeddings (..., k, M, E) of M tokens before each slot -> (..., k, M, C)."""
        heard = self.read_slot(features).unsqueeze(-2) + self.read_token(before)
        told: Tensor = features.unsqueeze(-2) + self.write(heard.relu())
        return told


def tokens_before(last: Tensor, block: Tensor) -> Tensor:
    """What stands before each slot: the last tokens of the prefixes (B,) and blocks (B, k, ...) -> (B, k, ...)."""
    first = last.view(-1, *[1] * (block.dim() - 1)).expand_as(block[:, :1])
    return torch.cat([first, block[:, :-1]], dim=1)


def chosen_along_chain(decoder: Any, features: Tensor, logits: Tensor, last: Tensor) -> Tensor:
    """The block that begins with the best token after ``last`` and goes on with the best after each: (B, k) int64.

    Args:
        decoder: a :class:`~fairseq_aggdec.models.nar_drafter.NarDecoder` with a chain.
        features: (B, k, C) of the slots.
        logits: (B, k, V) of the slots alone, over the first V types of the dictionary; they choose the candidates.
        last: (B,) int64, the last tokens of the prefixes.
    """
    best = logits.topk(min(CANDIDATES, logits.size(-1))).indices  # (B, k, M)
    told = decoder.chained(features, tokens_before(last, best))  # (B, k, M, C)
    projection = decoder.output_projection
    scores = told @ projection.weight[best].transpose(-1, -2)  # (B, k, M before, M)
    if projection.bias is not None:
        scores = scores + projection.bias[best].unsqueeze(-2)
    choices = scores.argmax(-1)  # (B, k, M): the best candidate after each candidate before
    place = choices.new_zeros(len(choices), 1)
    chosen = []
    for choice, tokens in zip(choices.unbind(1), best.unbind(1), strict=True):
        place = choice.gather(1, place)
        chosen.append(tokens.gather(1, place))
    return torch.cat(chosen, dim=1)
