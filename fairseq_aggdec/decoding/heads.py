"""Block heads over packed weights: only the heads and positions that are read."""

import torch
from torch import Tensor, nn

from fairseq_aggdec.decoding.linear import FastLinear
from fairseq_aggdec.models.block_heads import BlockHeads


class FastHeads:
    """The heads of a blockwise model in evaluation mode.

    Args:
        heads: the trained module; its weights are read, never changed.
        pack: lay the weights out for few rows on CPU.
    """

    def __init__(self, heads: BlockHeads, pack: bool):
        self.identity_first = heads.identity_first
        self.dense, self.dim, self.hidden_dim = heads.dense, heads.dim, heads.hidden_dim
        self.first_head = None if self.identity_first else self._layer(heads, 0, 1, pack)
        self.other_heads = [
            self._layer(heads, first, last, pack) for first, last in self._groups(heads.block_size)
        ]

    def _groups(self, block_size: int) -> list[tuple[int, int]]:
        """Heads 2 to k (counted from 0: 1 to k - 1): together when dense, one by one when each has its own weights."""
        if self.dense:
            return [(1, block_size)] if block_size > 1 else []
        return [(head, head + 1) for head in range(1, block_size)]

    @staticmethod
    def _layer(
        heads: BlockHeads, first: int, last: int, pack: bool
    ) -> tuple[FastLinear, FastLinear]:
        read, write = heads.weights(first, last)
        return (
            FastLinear([_linear(heads.expand, read)], relu=True, pack=pack),
            FastLinear([_linear(heads.contract, write)], pack=pack),
        )

    def first(self, features: Tensor) -> Tensor:
        """Head 1, the model itself: (N, C) -> (N, C)."""
        if self.first_head is None:
            return features
        expand, contract = self.first_head
        return features + contract(expand(features))

    def others(self, features: Tensor, block_size: int) -> Tensor:
        """Heads 2 to ``block_size``: (B, C) -> (B, ``block_size`` - 1, C)."""
        wanted = block_size - 1
        groups = self.other_heads[: 1 if self.dense else wanted]
        corrections = [contract(expand(features)) for expand, contract in groups]
        correction = torch.cat(corrections, dim=-1).view(len(features), -1, self.dim)
        return features.unsqueeze(1) + correction[:, :wanted]


def _linear(module: nn.Linear, rows: slice) -> nn.Linear:
    """Some outputs of a linear layer as a layer of their own; the weights are shared."""
    weight, bias = module.weight[rows], module.bias[rows]
    part = nn.Linear(weight.size(1), weight.size(0), device="meta")
    part.weight, part.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
    return part
