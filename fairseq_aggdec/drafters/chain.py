"""Drafting along a chain: which of the likely tokens of every slot go together.

Only the most likely tokens of every slot are looked at, and what each slot says after each of those before it is worked
out for all pairs at once, so that a draft takes one pass of the drafter and no loop over a network.
"""

from types import SimpleNamespace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.drafters.trees import CANDIDATES
from fairseq_aggdec.engine.int8 import linear
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.models.slot_chain import ChainedDecoder, SlotChain, tokens_before

MOST_SLOTS = 64  # that the fused kernels take


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

    def conditioned(self, features: Tensor, before: Tensor) -> Tensor:
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
        weight = self.projection.weight
        fits = features.size(1) <= MOST_SLOTS and features.size(2) % 8 == 0
        fits = (
            fits
            and weight.is_contiguous()
            and gpu.operators.aligned(weight)
            and weight.numel() < 2**32
        )
        fits = fits and weight.dtype in gpu.operators.PRECISIONS
        way = self._likeliest if fits else self._plain
        device = weight.device
        choose = gpu.operators.either(way, self._plain, device, follows_alike, weight.dtype)
        return choose(features, logits, last)

    def _likeliest(self, features: Tensor, logits: Tensor, last: Tensor) -> Tensor:
        """:meth:`choose` by the kernels."""
        best = gpu.largest.likeliest(logits.flatten(0, 1), min(CANDIDATES, logits.size(-1)))
        return self._fused(features, best.unflatten(0, logits.shape[:2]), last)

    def _plain(self, features: Tensor, logits: Tensor, last: Tensor) -> Tensor:
        """:meth:`choose` by PyTorch's operators."""
        best, scores = self.pairs(features, logits, last)
        choices = scores.argmax(-1)  # (B, k, M): the best candidate after each candidate before
        way = follow(choices)[..., :1]  # from any beginning: before the first slot all are the same
        return best.gather(2, way).squeeze(2)

    def _fused(self, features: Tensor, best: Tensor, last: Tensor) -> Tensor:
        """:meth:`choose` among candidates (B, k, M), in two launches and two products."""
        rows, size, most = best.shape
        slots, weight = self.read_slot(features.flatten(0, 1)), self.projection.weight
        chained = features.new_empty(rows * size * most, features.size(2))
        block_form = (
            size,
            most,
            features.size(2),
            gpu.operators.PRECISIONS[features.dtype],
            last,
            best,
            self.heard,
        )
        gpu.operators.ops().hear(
            len(chained), *block_form, slots, chained, None, None, None, None, None
        )
        written, block = self.write(chained), best.new_empty(rows, size)
        read = features, written, weight, self.projection.bias, block
        gpu.operators.ops().follow(rows, *block_form, slots, chained, *read)
        return block

    def pairs(self, features: Tensor, logits: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates (B, k, M) of every slot and their logits after each candidate of the slot before (B, k, M, M).

        Arguments as for :meth:`choose`; before the first slot stands the last token of the prefix, M times.
        """
        best = logits.topk(min(CANDIDATES, logits.size(-1))).indices  # (B, k, M)
        conditioned = self.conditioned(features, tokens_before(last, best))  # (B, k, M, C)
        scores = conditioned @ F.embedding(best, self.projection.weight).transpose(-1, -2)
        if self.projection.bias is not None:
            scores = scores + self.projection.bias[best].unsqueeze(-2)
        return best, scores


def _random_chain(
    device: torch.device, dtype: torch.dtype, types: int, channels: int, chance: torch.Generator
) -> FastChain:
    decoder = SimpleNamespace(embed_tokens=nn.Embedding(types, channels), embed_scale=1.0)
    decoder.output_projection = nn.Linear(channels, types)
    decoder.chain = SlotChain(channels, channels)
    for part in (decoder.embed_tokens, decoder.output_projection, decoder.chain):
        for weight in part.to(dtype).parameters():
            weight.copy_(torch.randn(weight.shape, generator=chance))
        part.to(device)
    # As large as the scores: it decides as often as they do.
    decoder.output_projection.bias.mul_(100)
    return FastChain(cast(ChainedDecoder, decoder))


def _twins(device: torch.device, rows: int, dtype: torch.dtype) -> gpu.operators.Twins:
    chance = torch.Generator().manual_seed(7)
    chain = _random_chain(device, dtype, gpu.operators.TYPES, gpu.operators.CHANNELS, chance)
    features = torch.randn(rows, 4, gpu.operators.CHANNELS, generator=chance).to(device, dtype)
    logits = torch.randn(rows, 4, gpu.operators.TYPES, generator=chance).to(device, dtype)
    last = torch.full((rows,), 7, device=device)

    def by_kernels() -> Tensor:
        best = logits.flatten(0, 1).topk(CANDIDATES).indices
        return chain._fused(features, best.unflatten(0, logits.shape[:2]), last)

    return gpu.operators.Twins(by_kernels, lambda: chain._plain(features, logits, last))


@gpu.operators.tries("hear", "follow", twins=_twins, precise=True)
def follows_alike(device: torch.device, dtype: torch.dtype) -> bool:
    """Tells whether the kernels choose the block that PyTorch's operators choose, in a precision."""
    # With this seed no two candidates score nearly alike: products of a GPU round otherwise than those of a CPU.
    chance = torch.Generator().manual_seed(1)
    chain = _random_chain(device, dtype, 20, 40, chance)
    features = torch.randn(3, 5, 40, generator=chance).to(dtype).to(device)
    logits = torch.rand(15, 20, generator=chance).argsort(-1).to(dtype).to(device)
    last = torch.tensor([4, 7, 4]).to(device)
    best, _ = chain.pairs(features, logits.view(3, 5, 20), last)
    if not torch.equal(best.flatten(0, 1).cpu(), gpu.largest.likeliest(logits, CANDIDATES).cpu()):
        return False
    plain = chain._plain(features, logits.view(3, 5, 20), last)
    return torch.equal(plain.cpu(), chain._fused(features, best, last).cpu())


def follow(choices: Tensor) -> Tensor:
    """Follows a chain from every beginning, in as many steps as doublings of the length: (B, k, M) int64.

    Args:
        choices: (B, k, M) int64, the place among M that follows each of M places.
    """
    length = 1  # of the way that every entry stands for
    while length < choices.size(1):
        longer = choices[:, length:].gather(2, choices[:, :-length])
        choices = torch.cat([choices[:, :length], longer], dim=1)
        length *= 2
    return choices
