"""A stock Transformer decoder over packed weights: its embeddings, its layers, its projection to the vocabulary.

Nothing here belongs to a batch: keys and values are those of a :class:`~fairseq_aggdec.engine.kv_cache.KVCache`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from fairseq_aggdec.engine import attention, cross_attention
from fairseq_aggdec.engine.compiled import EmbeddingForm, Memory, compile_layers
from fairseq_aggdec.engine.encoder import Encoded, EncoderOut, FastLayer, position_table
from fairseq_aggdec.engine.int8 import Int8Linear, linear
from fairseq_aggdec.engine.linear import (
    FastLinear,
    FastNorm,
    add,
    fold_biases,
    optional_norm,
    read,
    some_outputs,
)
from fairseq_aggdec.engine.plain.support import source_width
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.kernels.gpu import operators, products
from fairseq_aggdec.kernels.gpu.embedding import EmbeddingTables, MaskSlots, embedded
from fairseq_aggdec.windows.draft import AS_VERIFIED, Proposing
from fairseq_aggdec.windows.grid import GridWindow, Sight
from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.window import Window

# Rows of a window up to which products of a GPU are the fused ones. Any number is right; every 16 read the weights.
MOST_ROWS = 32


class DecoderLayer(FastLayer):
    """One decoder layer over the N tokens of a window."""

    def __init__(self, layer: Any, precision: Precision):
        super().__init__(layer, precision)
        cross, self.own = layer.encoder_attn, layer.self_attn
        self.cross_q = linear([cross.q_proj], precision)
        self.cross_kv = linear([cross.k_proj, cross.v_proj], precision)
        self.cross_out = linear([cross.out_proj], precision)
        self.cross_norm = FastNorm(layer.encoder_attn_layer_norm)

    @functools.cached_property
    def own_value(self) -> FastLinear:
        """Self-attention of a position that sees itself only: the output projection of its own value."""
        value, out = self.own.v_proj, self.own.out_proj
        both = nn.Linear(value.in_features, out.out_features, device="meta")
        weight = out.weight.detach() @ value.weight.detach()
        bias = out(value.bias).detach()
        if self.own_out.bias_folded:
            # What is read has that bias already, and so has what the result is added to.
            bias = bias - out.bias.detach() - weight @ out.bias.detach()
        both.weight = nn.Parameter(weight, requires_grad=False)
        both.bias = nn.Parameter(bias, requires_grad=False)
        return FastLinear([both], pack=self.precision.pack, bf16=self.precision.bf16)

    def split(self, kv: Tensor) -> Tensor:
        """Keys and values (B, L, 2C) -> (2, B, H, L, D), a view."""
        rows, length, _ = kv.shape
        return kv.view(rows, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)

    def attend(self, q: Tensor, kv: Tensor, mask: Tensor | None, window: Window) -> Tensor:
        """Queries (N, C) of a window over keys and values (2, B, H, L, D) -> (N, C)."""
        k, v = kv.unbind(0)
        # (N, C) -> (B, H, W, D)
        grid = window.to_grid(q).view(window.rows, window.width, self.heads, -1).transpose(1, 2)
        if self.precision.int8:
            attended = attention.attend_alone(grid, k, v, mask)
        elif self.precision.strict and window.fixed and grid.device.type == "cpu":
            attended = attention.attend_by_query(grid, k, v, mask)
        else:
            attended = F.scaled_dot_product_attention(grid, k, v, attn_mask=mask)
        return window.from_grid(attended.transpose(1, 2))

    def __call__(
        self,
        x: Tensor,
        norm: FastNorm | None,
        window: Window,
        cache: Tensor,
        seen: Tensor | Sight | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        fused: bool = False,
    ) -> Tensor:
        """One layer.

        Args:
            x: (N, C), what the layer before gave.
            norm: the last one of the layer before, if x lacks it still.
            window: says where the tokens stand.
            cache: (B, capacity, 2C), written in place.
            seen: see :meth:`seen`.
            memory, memory_mask: (2, B, H, S, D) of the source; additive, (B, 1, 1, S), or None.
            fused: in 7 launches of a GPU, if the layer is :attr:`fusible`.

        Returns:
            (N, C), without the layer's last norm where norms follow.
        """
        block, before = self.feed_forward, self.pre_norm
        norms = self.own_norm, self.cross_norm, block.norm
        first, second, third = norms if before else (norm, *norms[:2])
        if window.alone:
            x, own = read(self.own_value, x, first, before, fused)
            x = x + own
        else:
            x, qkv = read(self.qkv, x, first, before, fused)
            x = add(self.own_out, x, self.attend_own(qkv, window, cache, seen), fused)
        x, attended = self.read_source(x, second, window, memory, memory_mask, fused)
        x = add(self.cross_out, x, attended, fused)
        x, hidden = read(block.expand, x, third, before, fused)
        return add(block.contract, x, block.activated(hidden), fused)

    @property
    def fusible(self) -> bool:
        """Tells whether the fused products of a GPU can compute it."""
        return self.fusible_with([self.cross_q, self.cross_out], [self.cross_norm])

    def seen(self, x: Tensor, window: Window, span: int | None) -> Tensor | Sight | None:
        """Mask of what the slots of a window see, as :meth:`attend_own` reads it: for PyTorch's attention."""
        if isinstance(window, GridWindow) and self.fuses(x, window, window.end):
            return window.sight(span)
        return None if window.alone else window.mask(x.dtype, span)

    def fuses(self, x: Tensor, window: Window, keys: int) -> bool:
        """Tells whether the slots of x (N, C) attend to ``keys`` keys in one launch."""
        other = self.precision.int8 or self.precision.strict
        return not other and attention.fused(window, keys, x, x.size(1) // self.heads)

    def attend_own(
        self, qkv: Tensor, window: Window, cache: Tensor, seen: Tensor | Sight | None
    ) -> Tensor:
        """Self-attention: qkv (N, 3C) -> (N, C); keys and values go to the cache (B, capacity, 2C) first."""
        cache = cache[:, : window.end]
        if isinstance(seen, Sight):
            return attention.attend_own(qkv, cache, window.width, self.heads, seen)
        width = qkv.size(-1) // 3
        own = qkv[:, width:]
        if window.level and window.dense:
            cache[:, window.starts[0] :] = own.view(window.rows, window.width, -1)
        else:
            cache[window.row_of, window.positions] = own
        return self.attend(qkv[:, :width], self.split(cache), seen, window)

    def read_source(
        self,
        x: Tensor,
        norm: FastNorm | None,
        window: Window,
        memory: Tensor,
        memory_mask: Tensor | None,
        fused: bool,
    ) -> tuple[Tensor, Tensor]:
        """Where the residual connection begins, x (N, C) or ``norm(x)``, and what the slots read of a source (N, C)."""
        asks, before = self.cross_q, self.pre_norm
        at_once = fused and self.fuses(x, window, memory.size(3))
        at_once = at_once and cross_attention.runs(x.device, x.dtype)
        if not at_once or norm is None or isinstance(asks, Int8Linear):
            x, q = read(asks, x, norm, before, fused)
            return x, self.attend_source(q, window, memory, memory_mask)
        assert asks.transposed is not None
        kept = None if before else torch.empty_like(x)
        given = norm.parameters, memory, memory_mask, window.width, kept
        attended = cross_attention.attend(x, asks.transposed, asks.bias, *given)
        return x if kept is None else kept, attended

    def attend_source(
        self, q: Tensor, window: Window, memory: Tensor, memory_mask: Tensor | None
    ) -> Tensor:
        """Attention to the source: q (N, C), memory (2, B, H, S, D) -> (N, C)."""
        if self.fuses(q, window, memory.size(3)):
            return attention.attend_source(q, memory, memory_mask, window.width)
        return self.attend(q, memory, memory_mask, window)


class TokenEmbedding:
    """The tokens of a window as vectors, as a stock decoder embeds them.

    Attributes:
        stock: embeds as a stock decoder; a captured step can then do it.
        opening: (C,) added to every position; None: nothing.
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
        self.replaced: Callable[[], object] = lambda: None

    def fold_biases(self, layers: Sequence["DecoderLayer"]) -> None:
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

    def on_grid(self, window: GridWindow, masks: MaskSlots | None = None) -> Tensor:
        """Tokens (N,) and mask slots of a GPU -> (N, C)."""
        places = self.positions(window.reach) if self.positioned else None
        weight, direct = self.decoder.embed_tokens.weight, self.project is None
        table = EmbeddingTables(weight, self.scale, places if direct else None)
        x = embedded(window.tokens, window.steps, table, masks)
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
        fusible: the kernels of a GPU can run the layers for few rows.
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
        parts: list[Any] = [*self.layers, *([] if self.norm is None else [self.norm])]
        self.fusible = on_gpu and all(one.fusible for one in parts) and len(placements) == 1
        self.compiled = compile_layers(self.layers, self.norm, self.embedding.form())
        self.project_vocabulary = linear([decoder.output_projection], precision)
        self.proposing, self.project_drafts = AS_VERIFIED, self.project_vocabulary
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
                kv = [layer.cross_kv(states) for layer in self.layers]
        mask = additive_mask(padding[0], states.dtype) if padding else None
        more = self.embedding.source(encoder_out, tokens)
        return ([*kv, *more] if more else kv), mask

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
    ) -> Tensor:
        """All layers, one by one: (N, C) -> (N, C).

        Args:
            x: what the first layer reads.
            window: says where the tokens stand.
            cache: (layers, B, capacity, 2C), written in place.
            memory: of each layer (2, B, H, S, D), see :meth:`split`.
            memory_mask: additive, (B, 1, 1, S), or None.
        """
        seen = self.layers[0].seen(x, window, self.span) if self.layers else None
        few = self.fusible and len(x) <= MOST_ROWS and not window.alone
        few = few and operators.usable(x.device, products.computes_alike, x.dtype)
        given = window, cache, seen, memory, memory_mask
        return run_layers(self.layers, x, self.norm, *given, fused=few)

    def draft_projection(self, proposing: Proposing) -> FastLinear | Int8Linear:
        """The layer from which a drafter chooses: (N, C_out) -> (N, M), the first types of the dictionary or all."""
        if proposing != self.proposing:
            self.proposing, projection = proposing, self.decoder.output_projection
            self.project_drafts = self.project_vocabulary
            cheaper = proposing.int8 and not self.precision.int8
            if 0 < proposing.types < projection.out_features or cheaper:
                part = some_outputs(projection, slice(proposing.types or None))
                self.project_drafts = linear([part], replace(self.precision, int8=proposing.int8))
        return self.project_drafts


def run_layers(
    layers: Sequence[DecoderLayer],
    x: Tensor,
    last: FastNorm | None,
    window: Window,
    cache: Tensor,
    seen: Tensor | Sight | None,
    memory: Sequence[Tensor],
    memory_mask: Tensor | None,
    fused: bool = False,
) -> Tensor:
    """Layers, one by one, and a norm: (N, C) -> (N, C); arguments as of a :class:`DecoderLayer`, for all of them."""
    norm: FastNorm | None = None
    # unbind: to iterate over a tensor takes longer
    for layer, kept, source in zip(layers, cache.unbind(0), memory, strict=True):
        x = layer(x, norm, window, kept, seen, source, memory_mask, fused)
        norm = None if layer.pre_norm else layer.feed_forward.norm
    for missing in (norm, last):
        if missing is not None:
            x = products.normed(x, missing.parameters) if fused else missing(x)
    return x
