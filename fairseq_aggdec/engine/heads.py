"""Block heads and their layers over packed weights: only the heads and positions that are read."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.engine.compiled import compile_layers
from fairseq_aggdec.engine.decoder_layer import DecoderLayer, run_layers
from fairseq_aggdec.engine.encoder import EncoderOut
from fairseq_aggdec.engine.int8 import Int8Linear, linear
from fairseq_aggdec.engine.linear import FastLinear, optional_norm, some_outputs
from fairseq_aggdec.engine.packed_decoder import PackedDecoder
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.kernels.library import HeadsStruct, ProductStruct, reads
from fairseq_aggdec.models.block_heads import BlockHeads
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.windows.masks import additive_mask, mask_of_rows
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import Window


class FastHeads:
    """The heads of a blockwise model in evaluation mode.

    Args:
        heads: the trained module; its weights are read, never changed.
        precision: how to compute.
    """

    def __init__(self, heads: BlockHeads, precision: Precision = EXACT):
        self.heads, self.precision = heads, precision
        self.struct: Any = None
        self.first_head: tuple[FastLinear | Int8Linear, ...] | None = None
        if not heads.identity_first:
            read, write = heads.weights(0, 1)
            expand = self._layer(heads.expand, read, relu=True)
            self.first_head = expand, self._layer(heads.contract, write)
        if heads.block_size > 1:
            read, write = heads.weights(1, heads.block_size)
            if heads.dense and self.first_head is not None:  # head 1 reads the same hidden units
                self.expand = self.first_head[0]
            else:
                self.expand = self._layer(heads.expand, read, relu=True)
            if heads.dense:
                self.contract = self._layer(heads.contract, write)
                self._compile_dense()
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
        self.struct = HeadsStruct(product.struct, ProductStruct(), self.heads.hidden_dim, *pointers)
        self.library = product.library

    def _compile_dense(self) -> None:
        expand, contract = self.expand.kernel, self.contract.kernel
        if expand is not None and contract is not None:
            self.struct = HeadsStruct(expand.struct, contract.struct, self.heads.hidden_dim)
            self.library = expand.library

    def _layer(self, module: nn.Linear, rows: slice, relu: bool = False) -> FastLinear | Int8Linear:
        return linear([some_outputs(module, rows)], self.precision, relu)

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
        wanted = block_size - 1
        if self.struct is not None:
            return self._compiled(features, wanted, heard, chosen)
        others = self._plain(features, wanted)
        if heard is None or chosen is None:
            return others
        return others + F.embedding(chosen, heard).unsqueeze(1)

    def _compiled(
        self, features: Tensor, wanted: int, heard: Tensor | None, chosen: Tensor | None
    ) -> Tensor:
        struct, features = self.struct, features.float().contiguous()
        rows, dim = features.shape
        out = features.new_empty(rows, wanted, dim)
        struct.heard = tokens = None
        if heard is not None and chosen is not None:
            struct.heard, tokens = heard.data_ptr(), chosen.data_ptr()
        self.library.aggdec_heads(
            *(ctypes.byref(struct), features.data_ptr(), tokens, rows, wanted),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def _plain(self, features: Tensor, wanted: int) -> Tensor:
        hidden = self.expand(features)
        if self.heads.dense:
            correction = self.contract(hidden).view(len(features), -1, self.heads.dim)[:, :wanted]
        else:
            by_head = hidden.view(len(features), -1, self.heads.hidden_dim).transpose(0, 1)
            correction = torch.baddbmm(
                self.biases[:wanted], by_head[:wanted], self.weights[:wanted]
            ).transpose(0, 1)
        return correction + features.unsqueeze(1)


class FastHeadLayers:
    """The layers that heads 2 to k pass through, in evaluation mode.

    Args:
        decoder: has them; its weights are read, never changed.
        precision: how to compute. (What a head hears of every token, V x C, is kept in any case.)

    Attributes:
        heard: (V, C), what heads hear of every token.
    """

    @torch.no_grad()
    def __init__(self, decoder: HeadedDecoder, precision: Precision):
        module = decoder.head_layers
        assert module is not None
        self.heard = module.read_token(decoder.embed_scale * decoder.embed_tokens.weight)  # (V, C)
        self.layers = [DecoderLayer(layer, precision) for layer in module.layers]
        self.norm = optional_norm(module.layer_norm)
        self.compiled = compile_layers(self.layers, self.norm)
        self.encoder_out: EncoderOut | None = None

    def _start(self, encoder_out: EncoderOut) -> None:
        states = encoder_out["encoder_out"][0].transpose(0, 1)  # (B, S, C_enc)
        padding = encoder_out["encoder_padding_mask"]
        self.encoder_out, self.sentences = encoder_out, list(range(len(states)))
        self.of_all = [layer.cross_kv(states) for layer in self.layers]  # each (B, S, 2C)
        self.mask_of_all = additive_mask(padding[0], states.dtype) if padding else None
        self.memory, self.memory_mask = self.of_all, self.mask_of_all

    def _read(self, encoder_out: EncoderOut, sentences: list[int]) -> None:
        """Has keys and values of the given sentences of a batch where the layers read them."""
        if self.encoder_out is not encoder_out:
            self._start(encoder_out)
        if sentences == self.sentences:
            return
        rows = to_device(sentences, self.of_all[0].device)
        self.sentences, mask = sentences, self.mask_of_all
        self.memory = [memory.index_select(0, rows) for memory in self.of_all]
        self.memory_mask = None if mask is None else mask_of_rows(mask, rows)

    def read_all(self, encoder_out: EncoderOut, rows: int) -> None:
        """Has the compiled layers read all sentences of a batch."""
        self._read(encoder_out, list(range(rows)))
        assert self.compiled is not None
        self.compiled.memory = self.compiled.cache = None  # others may have used its step
        nothing = self.of_all[0].new_empty(1, 1, 1, 1)
        self.compiled.set_memory(nothing, self.memory, self.memory_mask)
        self.compiled.cache = None  # the library sets it

    def __call__(
        self, heads: Tensor, chosen: Tensor, encoder_out: EncoderOut, sentences: Sequence[int]
    ) -> Tensor:
        """Outputs of heads 2 to H + 1 (R, H, C), which have :attr:`heard` the tokens of head 1 (R,) -> (R, H, C).

        Args:
            encoder_out: of the whole batch.
            sentences: of which of them the R rows are.
        """
        self._read(encoder_out, list(sentences))
        rows, count, width = heads.shape
        window = Window(chosen, [0] * rows, [count] * rows)
        cache = heads.new_empty(len(self.layers), rows, count, 2 * width)
        x = heads.flatten(0, 1)
        if self.compiled is not None:
            x = self.compiled.decode(x, window, cache, None, self.memory, self.memory_mask)
            return x.view_as(heads)
        memory = [layer.split(kv) for layer, kv in zip(self.layers, self.memory, strict=True)]
        context = window, cache, window.mask(x.dtype), memory, self.memory_mask
        return run_layers(self.layers, x, self.norm, *context).view_as(heads)


@dataclass
class CompiledHeads:
    """Block heads as the compiled library reads them.

    Attributes:
        struct: what the library is given; ``heads`` is what it points to.
        layers: those that heads pass through; ``opening``: (C,), what they read before an output begins.
    """

    struct: Any
    heads: FastHeads
    layers: FastHeadLayers | None = None
    opening: Tensor | None = None


class DecoderHeads:
    """The block heads of a decoder: head 1 is part of the model, heads 2 to k propose.

    Args:
        packed: the decoder.

    Attributes:
        exact: the heads as the model computes; ``drafting``: as proposals are computed.
    """

    def __init__(self, packed: PackedDecoder):
        self.packed, self.decoder = packed, packed.decoder
        self.exact = self.drafting = FastHeads(self.decoder.heads, packed.precision)
        self.first = self.exact.first
        self.int8 = False  # as proposals are computed
        self.layers: FastHeadLayers | None = None

    def start(self, encoder_out: EncoderOut, rows: int) -> None:
        """Takes up a batch of ``rows`` sentences; the layers of heads read its source when they are asked."""
        self.encoder_out, self.sentences = encoder_out, list(range(rows))

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps the given rows of the batch, in this order."""
        self.sentences = [self.sentences[row] for row in rows]

    def _propose_in(self, int8: bool) -> None:
        """Has the heads ready that compute proposals in 8 bits, or as the model computes."""
        if int8 == self.int8:
            return
        self.int8, precision = int8, self.packed.precision
        self.drafting, self.layers = self.exact, None
        if int8 and not precision.int8:
            self.drafting = FastHeads(self.decoder.heads, replace(precision, int8=True))

    def compiled(self, int8: bool) -> CompiledHeads | None:
        """Parameters that the library needs to propose; None where it does not represent the heads or their layers."""
        self._propose_in(int8)
        if self.drafting.struct is None:
            return None
        struct = HeadsStruct.from_buffer_copy(self.drafting.struct)
        if self.decoder.head_layers is None:
            return CompiledHeads(struct, self.drafting)
        layers = self._head_layers()
        if layers.compiled is None:
            return None
        struct.heard = layers.heard.data_ptr()
        return CompiledHeads(
            struct, self.drafting, layers, self.decoder.head_layers.opening.detach()
        )

    def _head_layers(self) -> FastHeadLayers:
        if self.layers is None:
            int8 = self.int8 or self.packed.precision.int8
            self.layers = FastHeadLayers(self.decoder, replace(self.packed.precision, int8=int8))
        return self.layers

    def propose(
        self,
        features: Tensor,
        block_size: int,
        int8: bool = False,
        chosen: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Features (R, ``block_size`` - 1, C_out) and logits (..., V) of heads 2 to ``block_size``, from (R, C_out).

        Args:
            features: of one position in each of the first R rows of the batch.
            block_size: heads, head 1 among them.
            int8: they are computed in 8 bits.
            chosen: (R,) int64, the tokens of head 1 there, which the layers of the heads read.
        """
        self._propose_in(int8)
        others = self._others(features, block_size, chosen)
        logits = self.packed.draft_projection(int8)(others.flatten(0, 1))
        return others, logits.unflatten(0, others.shape[:2])

    def _others(self, features: Tensor, block_size: int, chosen: Tensor | None) -> Tensor:
        if self.decoder.head_layers is None:
            return self.drafting.others(features, block_size)
        assert chosen is not None
        layers = self._head_layers()
        others = self.drafting.others(features, block_size, layers.heard, chosen)
        return layers(others, chosen, self.encoder_out, self.sentences[: features.size(0)])
