"""Block heads over packed weights: only the heads and positions that are read."""

import torch
from torch import Tensor, nn

from fairseq_aggdec.decoding.int8 import Int8Linear, linear
from fairseq_aggdec.decoding.linear import FastLinear, some_outputs
from fairseq_aggdec.models.block_heads import BlockHeads


class FastHeads:
    """The heads of a blockwise model in evaluation mode.

    Args:
        heads: the trained module; its weights are read, never changed.
        pack: lay the weights out for few rows on CPU.
        int8: compute in 8 bits.
    """

    def __init__(self, heads: BlockHeads, pack: bool, int8: bool = False):
        self.heads, self.pack, self.int8 = heads, pack, int8
        self.first_head = None if heads.identity_first else self._layers(0, 1)
        if heads.block_size > 1:
            read, write = heads.weights(1, heads.block_size)
            if heads.dense and self.first_head is not None:  # head 1 reads the same hidden units
                self.expand = self.first_head[0]
            else:
                self.expand = self._layer(heads.expand, read, relu=True)
            if heads.dense:
                self.contract = self._layer(heads.contract, write)
            else:  # every head has a (small) product of its own: (k - 1, hidden, C) and (k - 1, 1, C)
                weight = heads.contract.weight[write].detach().unflatten(0, (-1, heads.dim))
                self.weights = weight.transpose(1, 2).contiguous()
                self.biases = heads.contract.bias[write].detach().view(-1, 1, heads.dim)

    def _layers(self, first: int, last: int) -> tuple[FastLinear | Int8Linear, ...]:
        read, write = self.heads.weights(first, last)
        return (
            self._layer(self.heads.expand, read, relu=True),
            self._layer(self.heads.contract, write),
        )

    def _layer(self, module: nn.Linear, rows: slice, relu: bool = False) -> FastLinear | Int8Linear:
        return linear([some_outputs(module, rows)], relu, self.pack, self.int8)

    def first(self, features: Tensor) -> Tensor:
        """Head 1, the model itself: (N, C) -> (N, C)."""
        if self.first_head is None:
            return features
        expand, contract = self.first_head
        return features + contract(expand(features))

    def others(self, features: Tensor, block_size: int) -> Tensor:
        """Heads 2 to ``block_size``: (B, C) -> (B, ``block_size`` - 1, C)."""
        wanted, dim = block_size - 1, self.heads.dim
        hidden = self.expand(features)
        if self.heads.dense:
            correction = self.contract(hidden).view(features.size(0), -1, dim)[:, :wanted]
        else:
            # (H, B, hidden); of one row a view that is laid out as the product wants it
            shape = features.size(0), -1, self.heads.hidden_dim
            by_head = (
                hidden.view(shape).transpose(0, 1)
                if features.size(0) > 1
                else hidden.view(shape[1:]).unsqueeze(1)
            )
            correction = torch.baddbmm(
                self.biases[:wanted], by_head[:wanted], self.weights[:wanted]
            ).transpose(0, 1)
        return correction + features.unsqueeze(1)
