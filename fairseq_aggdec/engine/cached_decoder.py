"""The cached decoder: a stock fairseq Transformer decoder that reads a window of several new positions per row.

One call of :meth:`CachedDecoder.features` is the window step on which every method stands: the tokens of a
:class:`~fairseq_aggdec.windows.window.Window` are run on top of the keys and values of what each row has committed.
Rollback needs no call: a row's next window starts at the first position that was not kept and overwrites what stands
there. Architectures with other layers are for :mod:`~fairseq_aggdec.engine.prefix_decoder`.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from fairseq_aggdec.engine.attention import with_kernels
from fairseq_aggdec.engine.compiled import Embedding, compile_layers, needs_mask
from fairseq_aggdec.engine.decoder_layer import DecoderLayer
from fairseq_aggdec.engine.encoder import EncoderOut
from fairseq_aggdec.engine.graphs.window_graphs import Kept, WindowGraphs
from fairseq_aggdec.engine.heads import FastHeadLayers, FastHeads
from fairseq_aggdec.engine.int8 import Int8Linear, linear
from fairseq_aggdec.engine.linear import (
    FastLinear,
    FastNorm,
    carry_biases,
    some_outputs,
)
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.windows.draft import AS_VERIFIED, Proposing
from fairseq_aggdec.windows.grid import GridWindow
from fairseq_aggdec.windows.masks import additive_mask, mask_of_rows
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import Window

logger = logging.getLogger(__name__)


class CachedDecoder:
    """A stock Transformer decoder with its own key/value cache, ragged rows and packed weights.

    Args:
        decoder: one for which :func:`~fairseq_aggdec.engine.plain.support.decoder_gap` is None; its weights are read,
            never changed.
        precision: how to compute.
    """

    def __init__(self, decoder: TransformerDecoderBase, precision: Precision = EXACT):
        self.decoder, self.precision = decoder, precision
        self.layers = [DecoderLayer(layer, precision) for layer in decoder.layers]
        device = decoder.embed_tokens.weight.device
        self.project_in = _optional_linear(decoder.project_in_dim, precision)
        self.project_out = _optional_linear(decoder.project_out_dim, precision)
        self.scale = float(decoder.embed_scale)
        self.embed_norm = _optional_norm(decoder.layernorm_embedding)
        self.opening: Tensor | None = None  # (C,), what is added to embeddings
        post_norm = not any(layer.pre_norm for layer in self.layers)
        if device.type == "cuda" and self.layers and post_norm:
            self._carry_biases()
        self.norm = _optional_norm(decoder.layer_norm)
        self.compiled = compile_layers(self.layers, self.norm, self._embedding())
        self.project_vocabulary = linear([decoder.output_projection], precision)
        self.project_drafts: FastLinear | Int8Linear | None = None
        self.proposing = AS_VERIFIED
        headed = isinstance(decoder, HeadedDecoder)
        self.heads = FastHeads(decoder.heads, precision) if headed else None
        self.draft_heads = self.heads
        self.head_layers: FastHeadLayers | None = None
        self.position_table: Tensor | None = None
        # Local attention (the image Transformer's decoder has it): how far back a position sees.
        self.span: int | None = getattr(decoder, "attention_span", None)
        self.spare: Tensor | None = None  # flat: the memory of the cache, kept from batch to batch
        self.views: tuple[Sequence[Tensor], list[Tensor]] | None = None
        self.graphs = None
        if precision.graphs and device.type == "cuda":
            self.graphs = WindowGraphs(self._run_on_grid, device)

    def _carry_biases(self) -> None:
        if self.embed_norm is not None:
            self.embed_norm.bias = carry_biases(self.embed_norm.bias, self.layers)
        elif self._embeds_alike and self.decoder.embed_positions is not None:
            nothing = self.decoder.embed_tokens.weight.new_zeros(self.decoder.embed_dim)
            self.opening = carry_biases(nothing, self.layers)
        else:
            carry_biases(None, self.layers)

    def start(self, encoder_out: EncoderOut, rows: int, capacity: int) -> None:
        """Forgets all rows and takes up a new batch.

        Args:
            encoder_out: fairseq's encoder output, ``encoder_out[0]`` of shape (S, B, C_enc).
            rows: B, the number of sentences.
            capacity: how many positions per row to make room for at first (it grows when needed).
        """
        states = encoder_out["encoder_out"][0].transpose(0, 1)  # (B, S, C_enc)
        padding = encoder_out["encoder_padding_mask"]
        self.views = None
        self.memory: Sequence[Tensor] = [layer.cross_kv(states) for layer in self.layers]
        self.memory_mask = additive_mask(padding[0], states.dtype) if padding else None
        if self.graphs is not None:
            kept = self.graphs.start(self.memory, self.memory_mask, rows, capacity)
            self.cache, self.memory, self.memory_mask = kept
        else:
            self.cache = self._emptied(rows, capacity, states)
        self.types: Tensor | None = None
        # The layers of heads, which not every batch needs, read it when they are asked.
        self.encoder_out, self.sentences = encoder_out, list(range(rows))

    def _emptied(self, rows: int, capacity: int, like: Tensor) -> Tensor:
        """A cache for a new batch, (layers, B, capacity, 2C), where those before had theirs if there is room.

        Memory that the system hands out anew takes longer to be touched first than to be written again. Zeros, not
        garbage: a hidden key has weight 0, and 0 times a garbage NaN would be NaN.
        """
        shape = len(self.layers), rows, capacity, 2 * self.decoder.embed_dim
        count, spare = math.prod(shape), self.spare
        if (
            spare is None
            or spare.numel() < count
            or (spare.device, spare.dtype) != (like.device, like.dtype)
            or spare.is_inference() != torch.is_inference_mode_enabled()
        ):
            self.spare = like.new_zeros(count)
            return self.spare.view(shape)
        return spare[:count].zero_().view(shape)

    def _split(self, memory: Sequence[Tensor]) -> list[Tensor]:
        """Of each layer (B, S, 2C) -> (2, B, H, S, D), views, which serve until another is given."""
        if self.views is None or self.views[0] is not memory:
            views = [layer.split(kv) for layer, kv in zip(self.layers, memory, strict=True)]
            self.views = memory, views
        return self.views[1]

    def restrict(self, types: Tensor) -> None:
        """Until the next batch, :meth:`logits` are -inf but for the given types (M,) int64, the only ones computed."""
        part = some_outputs(self.decoder.output_projection, types)
        # In fp32 laying the weight out anew for every batch would not pay.
        self.types, self.project_types = types, linear([part], replace(self.precision, pack=False))

    def features(self, window: Window) -> Tensor:
        """Runs the window and stores its keys and values: tokens (N,) -> decoder features (N, C_out), or of what is
        ``wanted`` of each row, (B * wanted, C_out)."""
        if self.compiled is None or window.alone or window.fixed:
            x = window.of_wanted(with_kernels(window.tokens.device, self._run, window))
        else:
            x = self._run_compiled(window)
        return x if self.project_out is None else self.project_out(x)

    def _run_compiled(self, window: Window) -> Tensor:
        assert self.compiled is not None
        self._reserve(window.end)
        x = own_mask = positions = None
        if needs_mask(window, self.span):
            own_mask = window.mask(self.cache.dtype, self.span)
            x = self._embed(window)
        elif not self.compiled.embeds:
            x = self._embed(window)
        elif self.decoder.embed_positions is not None:
            positions = self._position_table(window.reach)
        found = self.compiled.decode(
            x, window, self.cache, own_mask, self.memory, self.memory_mask, positions
        )
        return found if x is None else window.of_wanted(found)

    def _run(self, window: Window) -> Tensor:
        if self.graphs is not None:
            if isinstance(window, GridWindow) and (kept := self.graphs.part(*window.size)):
                return self._run_on_grid(window.tokens, window, kept)
            if self.decoder.embed_positions is not None:
                self._position_table(window.reach)
            # What a method embeds in its own way is no part of the graph.
            alike = self._embeds_alike
            given = (lambda: window.tokens) if alike else (lambda: self._embed(window))
            if (x := self.graphs.step(window, given)) is not None:
                return x
        if not window.alone:
            self._reserve(window.end)
        kept = Kept(self.cache, self.memory, self.memory_mask)
        return self._run_layers(self._embed(window), window, kept)

    def _run_on_grid(self, given: Tensor, window: GridWindow, kept: Kept) -> Tensor:
        x = given if given.is_floating_point() else self._embed(window)
        return self._run_layers(x, window, kept)

    def _run_layers(self, x: Tensor, window: Window, kept: Kept) -> Tensor:
        own_mask = None if window.alone else window.mask(x.dtype, self.span)
        # unbind: to iterate over a tensor takes longer
        for layer, cache, memory in zip(
            self.layers, kept.cache.unbind(0), self._split(kept.memory), strict=True
        ):
            x = layer(x, window, cache, own_mask, memory, kept.memory_mask)
        return x if self.norm is None else self.norm(x)

    def logits(self, features: Tensor, temperature: float) -> Tensor:
        """(N, C_out) -> (N, V), divided by the temperature."""
        if self.heads is not None:
            features = self.heads.first(features)
        if self.types is None:
            logits = self.project_vocabulary(features)
        else:
            types = self.decoder.output_projection.out_features
            logits = features.new_full((len(features), types), -torch.inf)
            logits[:, self.types] = self.project_types(features)
        return logits if temperature == 1.0 else logits.div_(temperature)

    def _propose_as(self, proposing: Proposing) -> None:
        """Has the layers ready that compute proposals in this way."""
        if proposing == self.proposing:
            return
        self.proposing, projection = proposing, self.decoder.output_projection
        self.project_drafts = None
        cheaper = proposing.int8 and not self.precision.int8
        if 0 < proposing.types < projection.out_features or cheaper:
            part = some_outputs(projection, slice(proposing.types or None))
            self.project_drafts = linear([part], replace(self.precision, int8=proposing.int8))
        if self.heads is not None and cheaper:
            self.draft_heads = FastHeads(self.decoder.heads, replace(self.precision, int8=True))
        else:
            self.draft_heads = self.heads
        self.head_layers = None

    def draft_logits(self, features: Tensor, proposing: Proposing) -> Tensor:
        """What a drafter chooses from: (N, C_out) -> (N, M), the first types of the dictionary or all."""
        return self.draft_projection(proposing)(features)

    def draft_projection(self, proposing: Proposing) -> FastLinear | Int8Linear:
        """The layer that does it."""
        self._propose_as(proposing)
        return self.project_drafts or self.project_vocabulary

    def propose(
        self,
        features: Tensor,
        block_size: int,
        proposing: Proposing = AS_VERIFIED,
        chosen: Tensor | None = None,
        rows: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Features (R, ``block_size`` - 1, C_out) and logits (..., M) of heads 2 to ``block_size``, from (R, C_out).

        Args:
            features: of one position in each of R rows of the batch.
            block_size: heads, head 1 among them.
            proposing: how they are computed.
            chosen: (R,) int64, the tokens of head 1 there, which the heads' own layers read.
            rows: which of the batch; None: the first R.
        """
        others = self.proposed_features(features, block_size, proposing, chosen, rows)
        logits = self.draft_logits(others.flatten(0, 1), proposing)
        return others, logits.unflatten(0, others.shape[:2])

    def proposed_features(
        self,
        features: Tensor,
        block_size: int,
        proposing: Proposing,
        chosen: Tensor | None = None,
        rows: Sequence[int] | None = None,
    ) -> Tensor:
        """Features of :meth:`propose` alone: (R, ``block_size`` - 1, C_out)."""
        self._propose_as(proposing)
        assert self.draft_heads is not None
        if self.decoder.head_layers is None:
            return self.draft_heads.others(features, block_size)
        assert chosen is not None
        if self.head_layers is None:
            int8 = proposing.int8 or self.precision.int8
            self.head_layers = FastHeadLayers(self.decoder, replace(self.precision, int8=int8))
        sentences = self.sentences[: features.size(0)]
        if rows is not None:
            sentences = [self.sentences[row] for row in rows]
        others = self.draft_heads.others(features, block_size, self.head_layers.heard, chosen)
        return self.head_layers(others, chosen, self.encoder_out, sentences)

    @property
    def reads_trees(self) -> bool:
        """Local attention counts places, which are no positions in a tree. In 8 bits a token's numbers must be the same
        in whatever window: the compiled library leaves out what is hidden, PyTorch's sums round by what is between."""
        return self.span is None and (not self.precision.int8 or self.compiled is not None)

    def move(self, places: Sequence[tuple[int, int, int]]) -> None:
        """Copies keys and values: (row, from which place of the cache, to which)."""
        cache = self.cache
        if self.compiled is not None:
            self.compiled.move(cache, places)
            return
        rows, old, new = to_device(places, cache.device).unbind(1)
        cache[:, rows, new] = cache[:, rows, old]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps the given rows in the given order; what stands already in its place is not moved."""
        if self.heads is not None:
            self.sentences = [self.sentences[row] for row in rows]
        moved = [(new, old) for new, old in enumerate(rows) if new != old]
        if moved:
            new, old = to_device(moved, self.cache.device).unbind(1)
            self.cache[:, new] = self.cache[:, old]
            for memory in self.memory:
                memory[new] = memory[old]
            if self.memory_mask is not None:
                self.memory_mask[new] = self.memory_mask[old]
        self.cache = self.cache[:, : len(rows)]
        self.memory = [memory[: len(rows)] for memory in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[: len(rows)]

    def gather_rows(self, rows: Tensor) -> None:
        """Makes row ``rows[i]``, (R,) int64, the new row i; rows may come several times or not at all."""
        self.cache = self.cache.index_select(1, rows)
        self.memory = [memory.index_select(0, rows) for memory in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = mask_of_rows(self.memory_mask, rows)
        self._move_in()

    def reserve(self, end: int, reach: int) -> None:
        """Makes room for windows up to so many places and positions: a captured step cannot."""
        self._reserve(end)
        if self.decoder.embed_positions is not None:
            self._position_table(reach)

    def _reserve(self, positions: int) -> None:
        capacity = self.cache.size(2)
        if positions > capacity:
            extra = max(positions, capacity + capacity // 2) - capacity
            self.cache = F.pad(self.cache, (0, 0, 0, extra))
            self._move_in()

    def _move_in(self) -> None:
        """Has captured steps find keys and values that stand in new memory."""
        if self.graphs is None:
            return
        cache, mask = self.cache, self.memory_mask
        mask = None if mask is None else mask.clone()  # it may be where it is to be
        kept = self.graphs.start(self.memory, mask, cache.size(1), cache.size(2))
        kept.cache[:, :, : cache.size(2)] = cache
        self.cache, self.memory, self.memory_mask = kept

    @property
    def _embeds_alike(self) -> bool:
        """Whether all positions are embedded as a stock decoder embeds them."""
        return type(self)._embed is CachedDecoder._embed

    def _embedding(self) -> Embedding | None:
        """What :meth:`_embed` does, for the compiled library; None where that cannot."""
        return self._stock_embedding() if self._embeds_alike else None

    def _stock_embedding(self, slot: Tensor | None = None) -> Embedding | None:
        """Of a stock decoder, and of mask slots (C,) if there are any."""
        weight = self.decoder.embed_tokens.weight
        if self.project_in is not None or not weight.is_contiguous():
            return None
        return Embedding(weight, self.scale, self.embed_norm, slot)

    def _embed(self, window: Window) -> Tensor:
        x, scale = F.embedding(window.tokens, self.decoder.embed_tokens.weight), self.scale
        positions = self.decoder.embed_positions is not None
        # On a GPU in one launch; on a CPU that would round by where a number stands in memory.
        at_once = positions and self.project_in is None and x.device.type != "cpu"
        if scale != 1.0 and not at_once:
            x, scale = x * scale, 1.0
        if self.project_in is not None:
            x = self.project_in(x)
        if positions:
            x = window.add_positions(x, self._position_table(window.reach), scale)
        return x if self.embed_norm is None else self.embed_norm(x)

    def _position_table(self, positions: int) -> Tensor:
        """Position embeddings (>= ``positions``, C) as the model's own module gives them to an unpadded sentence."""
        table = self.position_table
        if table is None or table.size(0) < positions:
            # Sinusoids have no last position, and --match-source-len makes outputs longer than the model says.
            size = min(max(64, 2 * positions), max(positions, self.decoder.max_positions()))
            dummy = self.cache.new_full((1, size), self.decoder.padding_idx + 1, dtype=torch.long)
            if self.graphs is not None:
                self.graphs.forget()  # they read the one that is given up
            table = self.decoder.embed_positions(dummy)[0].detach()
            self.position_table = table = table if self.opening is None else table + self.opening
        return table


def _optional_linear(
    module: nn.Linear | None, precision: Precision
) -> FastLinear | Int8Linear | None:
    return None if module is None else linear([module], precision)


def _optional_norm(module: nn.LayerNorm | None) -> FastNorm | None:
    return None if module is None else FastNorm(module)
