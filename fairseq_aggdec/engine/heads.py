"""Block heads over packed weights: only the heads and positions that are read."""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.engine.int8 import Int8Linear, linear
from fairseq_aggdec.engine.linear import FastLinear, some_outputs
from fairseq_aggdec.kernels.library import HeadsStruct, reads
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
        self.struct: HeadsStruct | None = None
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
                self._compile()

    def _compile(self) -> None:
        """Has the library do it, where that reads the weights."""
        product = self.expand.kernel
        if product is None or not (reads(self.weights) and reads(self.biases)):
            return
        pointers = self.weights.data_ptr(), self.biases.data_ptr()
        self.struct = HeadsStruct(product.struct, self.heads.hidden_dim, *pointers)
        self.library = product.library

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

    def others(
        self,
        features: Tensor,
        block_size: int,
        heard: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Heads 2 to ``block_size``: (B, C) -> (B, ``block_size`` - 1, C).

        Args:
            features: of one position in each row.
            block_size: heads, head 1 among them.
            heard: (V, C), what is added for each token; None: nothing.
            chosen: (B,) int64, the token of each row for which that is.
        """
        wanted, dim = block_size - 1, self.heads.dim
        if self.struct is not None:
            return self._compiled(features, wanted, heard, chosen)
        others = self._plain(features, wanted, dim)
        if heard is None or chosen is None:
            return others
        return others + F.embedding(chosen, heard).unsqueeze(1)

    def _compiled(
        self, features: Tensor, wanted: int, heard: Tensor | None, chosen: Tensor | None
    ) -> Tensor:
        struct, features = self.struct, features.contiguous()
        assert struct is not None
        rows, dim = features.shape
        out = features.new_empty(rows, wanted, dim)
        struct.heard = tokens = None
        if heard is not None and chosen is not None:
            struct.heard, tokens = heard.data_ptr(), chosen.data_ptr()
        self.library.aggdec_heads(
            *(ctypes.addressof(struct), features.data_ptr(), tokens, rows, wanted),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def _plain(self, features: Tensor, wanted: int, dim: int) -> Tensor:
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
