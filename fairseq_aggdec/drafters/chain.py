"""Drafting along a chain: which of the likely tokens of every slot go together.

Only the most likely tokens of every slot are looked at, and what each slot says after each of those before it is worked
out for all pairs at once, so that a draft takes one pass of the drafter and no loop over a network.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.drafters.trees import CANDIDATES
from fairseq_aggdec.engine.int8 import linear
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.models.slot_chain import ChainedDecoder, tokens_before


class FastChain:
    """The chain of a drafter's slots or of block heads in evaluation mode; its weights are read, never changed.

    Args:
        decoder: has a chain.
        precision: how to compute. (What a slot hears of every token, V x C, is kept in any case.)
    """

    @torch.no_grad()
    def __init__(self, decoder: ChainedDecoder, precision: Precision = EXACT):
        assert decoder.chain is not None
        embedded = decoder.embed_scale * decoder.embed_tokens.weight
        self.heard = decoder.chain.read_token(embedded)  # (V, C)
        self.read_slot = linear([decoder.chain.read_slot], precision)
        self.write = linear([decoder.chain.write], precision)
        self.projection = decoder.output_projection

    def told(self, features: Tensor, before: Tensor) -> Tensor:
        """Features (B, k, C) of slots, each told M tokens (B, k, M) that may stand before it: (B, k, M, C)."""
        slots = self.read_slot(features.flatten(0, 1)).view_as(features)
        heard = (F.embedding(before, self.heard) + slots.unsqueeze(2)).relu_()
        return features.unsqueeze(2) + self.write(heard.flatten(0, 2)).view_as(heard)

    def choose(self, features: Tensor, logits: Tensor, last: Tensor) -> Tensor:
        """The block that begins with the best token after ``last`` and goes on with the best after each: (B, k) int64.

        Args:
            features: (B, k, C) of the slots.
            logits: (B, k, V) of the slots alone, over the first V types of the dictionary; they choose the candidates.
            last: (B,) int64, the last tokens of the prefixes.
        """
        best, scores = self.pairs(features, logits, last)
        choices = scores.argmax(-1)  # (B, k, M): the best candidate after each candidate before
        way = follow(choices)[..., :1]  # from any beginning: before the first slot all are the same
        return best.gather(2, way).squeeze(2)

    def pairs(self, features: Tensor, logits: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates (B, k, M) of every slot and their logits after each candidate of the slot before (B, k, M, M).

        Arguments as for :meth:`choose`; before the first slot stands the last token of the prefix, M times.
        """
        best = logits.topk(min(CANDIDATES, logits.size(-1))).indices  # (B, k, M)
        told = self.told(features, tokens_before(last, best))  # (B, k, M, C)
        scores = told @ F.embedding(best, self.projection.weight).transpose(-1, -2)
        if self.projection.bias is not None:
            scores = scores + self.projection.bias[best].unsqueeze(-2)
        return best, scores


def follow(choices: Tensor) -> Tensor:
    """Where one gets to from every beginning, in as many steps as doublings of the length: (B, k, M) int64.

    Args:
        choices: (B, k, M) int64, the place among M that follows each of M places.
    """
    length = 1  # of the way that every entry stands for
    while length < choices.size(1):
        longer = choices[:, length:].gather(2, choices[:, :-length])
        choices = torch.cat([choices[:, :length], longer], dim=1)
        length *= 2
    return choices
