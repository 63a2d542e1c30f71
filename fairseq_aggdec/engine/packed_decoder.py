"""A stock Transformer decoder over packed weights: its embeddings, its layers, its projection to the vocabulary.

Nothing here belongs to a batch: keys and values are those of a :class:`~fairseq_aggdec.engine.kv_cache.KVCache`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor

from fairseq_aggdec.engine.compiled import EmbeddingForm, Memory, compile_layers
from fairseq_aggdec.engine.decoder_layer import DecoderLayer, run_layers
from fairseq_aggdec.engine.encoder import Encoded, EncoderOut, parts_of, position_table
from fairseq_aggdec.engine.int8 import Int8Linear, linear
from fairseq_aggdec.engine.linear import (
    FastLinear,
    FastNorm,
    fold_biases,
    optional_norm,
)
from fairseq_aggdec.engine.plain.support import source_width
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.windows.grid import GridWindow
from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.window import Window


class TokenEmbedding:
    """The tokens of a window as vectors, as a stock decoder embeds them.

    Attributes:
        stock: embeds as a stock decoder; a captured step can then do it.
        opening: (C,) added to every position; None: nothing.
        queries: (>= positions, C), what a mask slot at each position asks the source; None: slots do not copy it.
        memories: how many more than the layers' it reads of a source.
        replaced: called before a table of positions is given up, which captured steps may read.
    """

    stock = True
    memories = 0

    def __init__(self, decoder: Any, precision: Precision):
        self.decoder, self.scale = decoder, float(decoder.embed_scale)
        self.project: FastLinear | Int8Linear | None = None
        if decoder.project_in_dim is not None:
            self.project = linear([decoder.project_in_dim], precision)
        self.norm = optional_norm(decoder.layernorm_embedding)
        self.positioned = decoder.embed_positions is not None
        self.opening: Tensor | None = None
        self.table: Tensor | None = None
        self.queries: Tensor | None = None
        self.replaced: Callable[[], object] = lambda: None

    def fold_biases(self, layers: Sequence[DecoderLayer]) -> None:
        """Moves the biases of the layers' products into what they are added to, as far back as this embedding."""
        if self.norm is not None:
            self.norm.bias = fold_biases(self.norm.bias, layers)
        elif self.stock and self.positioned:
            nothing = self.decoder.embed_tokens.weight.new_zeros(self.decoder.embed_dim)
            self.opening = fold_biases(nothing, layers)
        else:
            fold_biases(None, layers)

    def form(self, slot: Tensor | None = None) -> EmbeddingForm | None:
        """The embedding for the compiled library; None where the library cannot embed.

        Args:
            slot: (C,), what a mask slot reads in place of a token.
        """
        weight = self.decoder.embed_tokens.weight
        if self.project is not None or not weight.is_contiguous():
            return None
        return EmbeddingForm(weight, self.scale, self.norm, slot)

    def source(self, encoder_out: EncoderOut, tokens: Tensor | None) -> list[Tensor]:
        """The memories (B, S, 2C) that it reads, of fairseq's encoder output for tokens (B, S)."""
        return []

    def __call__(self, window: Window, memory: Memory, mask: Tensor | None) -> Tensor:
        """Tokens (N,) -> (N, C).

        Args:
            window: says which.
            memory: of the layers (B, S, 2C) each, then what :meth:`source` has made.
            mask: additive, (B, 1, 1, S), or None.
        """
        # On a CPU that would round by where a number stands in memory.
        if isinstance(window, GridWindow) and window.tokens.device.type != "cpu":
            return self.on_grid(window)
        x, scale = F.embedding(window.tokens, self.decoder.embed_tokens.weight), self.scale
        # On a GPU in one launch, as on a grid.
        at_once = self.positioned and self.project is None and x.device.type != "cpu"
        if scale != 1.0 and not at_once:
            x, scale = x * scale, 1.0
        if self.project is not None:
            x = self.project(x)
        if self.positioned:
            x = window.add_positions(x, self.positions(window.reach), scale)
        return x if self.norm is None else self.norm(x)

    def on_grid(self, window: GridWindow, masks: gpu.embedding.MaskSlots | None = None) -> Tensor:
        """Tokens (N,) and mask slots of a GPU -> (N, C)."""
        places = self.positions(window.reach) if self.positioned else None
        weight, direct = self.decoder.embed_tokens.weight, self.project is None
        table = gpu.embedding.EmbeddingTables(weight, self.scale, places if direct else None)
        x = gpu.embedding.embedded(window.tokens, window.steps, table, masks)
        if self.project is not None:
            x = self.project(x)
            x = x if places is None else window.add_positions(x, places)
        return x if self.norm is None else self.norm(x)

    def positions(self, count: int) -> Tensor:
        """Embeddings (>= ``count``, C) of positions, as the model gives them to a sentence without padding."""
        table = self.table
        if table is None or table.size(0) < count:
            self.replaced()
            # Sinusoids have no last position, and --match-source-len makes outputs longer than the model says.
            size = min(max(64, 2 * count), max(count, self.decoder.max_positions()))
            table = self.make_table(size)
        return table

    def make_table(self, size: int) -> Tensor:
        """Makes the table of positions, those of a sentence of ``size`` tokens."""
        table = position_table(self.decoder, size, self.decoder.embed_dim)
        self.table = table = table if self.opening is None else table + self.opening
        return table


class PackedDecoder:
    """The weights of a stock Transformer decoder, ready for windows.

    Args:
        decoder: one for which :func:`~fairseq_aggdec.engine.plain.support.decoder_gap` is None; its weights are read,
            never changed.
        precision: how to compute.
        embedding: of tokens; None: as a stock decoder.

    Attributes:
        compiled: all layers in one call of the compiled library; None where it cannot run them.
        span: how many positions back a position sees (the local attention of image Transformers); None: all.
        runs: whether kernels of a GPU or PyTorch's operators run the layers.
    """

    def __init__(
        self,
        decoder: TransformerDecoderBase,
        precision: Precision = EXACT,
        embedding: TokenEmbedding | None = None,
    ):
        self.decoder, self.precision = decoder, precision
        self.layers = [DecoderLayer(layer, precision) for layer in decoder.layers]
        self.source_width = source_width(decoder) if self.layers else 0
        self.project_out: FastLinear | Int8Linear | None = None
        if decoder.project_out_dim is not None:
            self.project_out = linear([decoder.project_out_dim], precision)
        self.embedding = embedding or TokenEmbedding(decoder, precision)
        placements = {layer.pre_norm for layer in self.layers}
        on_gpu = decoder.embed_tokens.weight.device.type == "cuda"
        if on_gpu and placements == {False}:
            self.embedding.fold_biases(self.layers)
        self.norm = optional_norm(decoder.layer_norm)
        like = decoder.embed_tokens.weight
        products, norms, allowed = parts_of(self.layers, self.norm, like)
        self.runs = gpu.products.Layers(products, norms, like, allowed)
        self.compiled = compile_layers(self.layers, self.norm, self.embedding.form())
        self.project_vocabulary = linear([decoder.output_projection], precision)
        self.project_drafts: FastLinear | Int8Linear | None = None  # in 8 bits
        self.span: int | None = getattr(decoder, "attention_span", None)

    def read_source(
        self,
        encoder_out: EncoderOut,
        tokens: Tensor | None = None,
    ) -> tuple[Memory, Tensor | None]:
        """Prepares what the decoder reads of a source.

        Args:
            encoder_out: fairseq's encoder output, states (S, B, C_enc).
            tokens: (B, S) int64, which only some embeddings need.

        Returns:
            Keys and values (B, S, 2C) of each layer, followed by what the embedding reads; the additive mask of padding
            (B, 1, 1, S), None without padding.

        Raises:
            ValueError: the encoder is of another width than the decoder reads.
        """
        kv: Memory
        if isinstance(encoder_out, Encoded) and encoder_out.reader is self.compiled:
            kv, states, padding = encoder_out.memory, encoder_out.room, encoder_out.padding
        else:
            states, padding = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"]
            if self.layers and states.size(-1) != self.source_width:
                raise ValueError(
                    f"the encoder gives {states.size(-1)} numbers for a token and the decoder reads "
                    f"{self.source_width}: take the encoder and the decoder of one model"
                )
            states = states.transpose(0, 1)  # (B, S, C_enc)
            if self.compiled is not None and states.dtype is torch.float32:
                kv = self.compiled.read_source(states.contiguous())
            else:
                kv = self._read_states(states)
        mask = additive_mask(padding[0], states.dtype) if padding else None
        more = self.embedding.source(encoder_out, tokens)
        return ([*kv, *more] if more else kv), mask

    def _read_states(self, states: Tensor) -> Memory:
        """Keys and values (B, S, 2C) of each layer."""
        return gpu.products.read_each([layer.cross_kv for layer in self.layers], states, self.runs)

    def split(self, memory: Memory) -> list[Tensor]:
        """Keys and values (B, S, 2C) of each layer -> views (2, B, H, S, D)."""
        return [layer.split(kv) for layer, kv in zip(self.layers, memory, strict=False)]

    def run(
        self,
        x: Tensor,
        window: Window,
        cache: Tensor,
        memory: Sequence[Tensor],
        memory_mask: Tensor | None,
        normed: bool = True,
    ) -> Tensor:
        """All layers, one by one: (N, C) -> (N, C).

        Args:
            x: what the first layer reads.
            window: says where the tokens stand.
            cache: (layers, B, capacity, 2C), written in place.
            memory: of each layer (2, B, H, S, D), see :meth:`split`.
            memory_mask: additive, (B, 1, 1, S), or None.
            normed: see :func:`~fairseq_aggdec.engine.decoder_layer.run_layers`.
        """
        seen = None
        if self.layers:
            seen = self.layers[0].attention(x, window).seen(x, window, self.span)
        runs = gpu.products.PLAIN if window.alone else self.runs
        context = window, cache, seen, memory, memory_mask, runs
        return run_layers(self.layers, x, self.norm, *context, normed=normed)

    @property
    def last_norm(self) -> FastNorm | None:
        """The norm behind which features are read; None: there is none."""
        if self.norm is not None or not self.layers or self.layers[-1].pre_norm:
            return self.norm
        return self.layers[-1].feed_forward.norm

    def draft_projection(self, int8: bool) -> FastLinear | Int8Linear:
        """The layer from which a drafter chooses: (N, C_out) -> (N, V), in 8 bits or as the model computes."""
        if not int8 or self.precision.int8:
            return self.project_vocabulary
        if self.project_drafts is None:
            precision = replace(self.precision, int8=True)
            self.project_drafts = linear([self.decoder.output_projection], precision)
        return self.project_drafts
