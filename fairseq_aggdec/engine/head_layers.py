"""The layers of block heads over packed weights: the heads of every row as a window of their own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_aggdec.engine.compiled import compile_layers
from fairseq_aggdec.engine.decoder_layer import DecoderLayer
from fairseq_aggdec.engine.encoder import EncoderOut
from fairseq_aggdec.engine.linear import FastNorm
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.windows.masks import additive_mask, mask_of_rows
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import Window


class FastHeadLayers:
    """The layers that heads 2 to k pass through, in evaluation mode.

    Args:
        decoder: has them; its weights are read, never changed.
        pack: lay the weights out for few rows on CPU. (What a head hears of every token, V x C, is kept in any case.)
        int8: compute in 8 bits.

    Attributes:
        heard: (V, C), what heads hear of every token.
    """

    @torch.no_grad()
    def __init__(self, decoder: HeadedDecoder, pack: bool, int8: bool = False):
        module = decoder.head_layers
        assert module is not None
        self.heard = module.read_token(decoder.embed_scale * decoder.embed_tokens.weight)  # (V, C)
        self.layers = [DecoderLayer(layer, pack, int8) for layer in module.layers]
        self.norm = None if module.layer_norm is None else FastNorm(module.layer_norm)
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
        mask = window.mask(x.dtype)
        for layer, kept, memory in zip(self.layers, cache.unbind(0), self.memory, strict=True):
            x = layer(x, window, kept, mask, layer.split(memory), self.memory_mask)
        return (x if self.norm is None else self.norm(x)).view_as(heads)
