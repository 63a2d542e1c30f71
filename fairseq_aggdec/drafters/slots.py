"""A drafter's decoder over prefixes and mask slots: plainly, through its own layers, or cached, as a verifier's."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_aggdec.drafters.slot_window import SlotForm, laid_out
from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.compiled import EmbeddingForm, Memory
from fairseq_aggdec.engine.encoder import EncoderOut, FastEncoder, StockEncoder, as_dtype_of
from fairseq_aggdec.engine.graphs.start_graphs import PLACED
from fairseq_aggdec.engine.graphs.window_graphs import grid_end
from fairseq_aggdec.engine.packed_decoder import TokenEmbedding
from fairseq_aggdec.engine.plain.support import decoder_gap
from fairseq_aggdec.engine.precision import EXACT, Precision, in_fp32
from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.kernels.stored import used
from fairseq_aggdec.models.nar_decoder import NarDecoder
from fairseq_aggdec.models.nar_drafter import NarDrafterModel
from fairseq_aggdec.search.board import Board, Rows, Shape
from fairseq_aggdec.windows.grid import GridWindow
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import Window

logger = logging.getLogger(__name__)


class LayerSlots:
    """Any drafter through its own layers, by recomputing everything: slow and plain."""

    def __init__(self, model: NarDrafterModel):
        self.model = model

    def read(self, encoder: FastEncoder | StockEncoder, net_input: Mapping[str, Tensor]) -> None:
        """Takes up a new batch that the encoder has to read."""
        self.begin(net_input["src_tokens"], encoder(net_input))

    def begin(self, src_tokens: Tensor, encoder_out: EncoderOut) -> None:
        """Takes up a new batch: ``src_tokens`` (B, S) and what the encoder made of them."""
        encoder_out = as_dtype_of(encoder_out, self.model.decoder.embed_tokens.weight)
        self.encoder_out = encoder_out
        self.source_keys = self.model.source_keys(src_tokens, encoder_out)
        self.device = src_tokens.device

    def block_features(self, prefixes: Sequence[Sequence[int]], block_size: int) -> Tensor:
        """Features (B, k, C) of the k = ``block_size`` slots that follow the prefixes.

        The prefixes are those of the call before and what was committed since, or empty.
        """
        decoder: NarDecoder = self.model.decoder
        width = max(map(len, prefixes))
        slots = [decoder.mask_index] * block_size
        rows = [
            [decoder.padding_idx] * (width - len(prefix)) + [*prefix, *slots] for prefix in prefixes
        ]
        tokens = to_device(rows, self.device)
        return decoder.slot_features(tokens, self.encoder_out, self.source_keys, block_size)

    def slot_logits(self, features: Tensor, int8: bool = False) -> Tensor:
        """(B, k, C) -> (B, k, V)."""
        logits: Tensor = self.model.decoder.output_layer(features)
        return logits

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps the given rows, in this order."""
        order = to_device(rows, self.device)
        self.encoder_out = self.model.encoder.reorder_encoder_out(self.encoder_out, order)
        if self.source_keys is not None:
            self.source_keys = self.source_keys[order]


def keys_beside(shape: Shape) -> int:
    """Tells how many places a drafter needs whose verifier reads windows of this shape: slots stand behind its last."""
    return shape.end + shape.width


class SlotEmbedding(TokenEmbedding):
    """The tokens of a window as vectors, with mask slots among them.

    With a source copy (``--src-embedding-copy``) a slot attends to the embeddings of the source by its position alone.
    What it attends to is one memory more than the layers read: keys and embeddings of the source, side by side.

    Attributes:
        masked: (N,) bool, which positions of a window on a grid are mask slots; of other windows the last of each row.
    """

    stock = False
    masked: Tensor

    def __init__(self, model: NarDrafterModel, precision: Precision):
        super().__init__(model.decoder, precision)
        self.model = model
        self.memories = int(model.decoder.copy_query is not None)

    def form(self, slot: Tensor | None = None) -> EmbeddingForm | None:
        decoder: NarDecoder = self.decoder
        form = super().form(None if decoder.published else decoder.mask_embedding.detach())
        if form is None:
            return None
        form.copies = bool(self.memories)
        if decoder.published:
            form.mask, form.each_layer = decoder.dictionary.unk(), True
        return form

    def source(self, encoder_out: EncoderOut, tokens: Tensor | None) -> list[Tensor]:
        if not self.memories or tokens is None:
            return []
        embedding, placed = encoder_out["encoder_embedding"][0], encoder_out.get(PLACED)
        keys: Any = placed[0] if placed else self.model.source_keys(tokens, encoder_out)
        return [torch.cat([keys, embedding], dim=-1)]

    def __call__(self, window: Window, memory: Memory, mask: Tensor | None) -> Tensor:
        decoder: NarDecoder = self.decoder
        table = self.positions(window.end)
        if isinstance(window, GridWindow):
            copied = self._copied(memory, mask) if self.memories else None
            return self.on_grid(
                window, gpu.embedding.MaskSlots(self.masked, decoder.mask_embedding, copied)
            )
        x = F.embedding(window.tokens, decoder.embed_tokens.weight) * decoder.embed_scale
        masks = window.row_ends(window.wanted - decoder.shift)
        slots = decoder.embed_scale * decoder.mask_embedding
        if self.memories:
            slots = slots + self._copied(memory, mask).at(window.positions[masks])
        x[masks] = slots
        if self.project is not None:
            x = self.project(x)
        x = window.add_positions(x, table)
        return x if self.norm is None else self.norm(x)

    def _copied(self, memory: Memory, mask: Tensor | None) -> gpu.embedding.SourceCopy:
        assert self.queries is not None
        return gpu.embedding.SourceCopy(self.queries, memory[-1], mask)

    def positions(self, count: int) -> Tensor:
        # The slots after the longest prefix have positions beyond those of targets.
        size = self.decoder.max_positions() + self.decoder.block_size
        return self.make_table(size) if self.table is None else self.table

    def make_table(self, size: int) -> Tensor:
        table = super().make_table(size)
        if self.memories:
            self.queries = self.decoder.copy_query(table).detach()
        return table


def make_slots(model: NarDrafterModel, precision: Precision) -> "LayerSlots | CachedSlots":
    """The fastest slots of a drafter; the log says why it has to recompute prefixes, if so."""
    gap = decoder_gap(model.decoder)
    if gap is None:
        with used([model]):
            slots = CachedSlots(model, precision)
        if not model.decoder.published or slots.embeds:
            return slots
        gap = "positions before every layer, which only the compiled library adds"
    logger.info("the drafter recomputes the prefix in each call: %s", gap)
    return LayerSlots(model)


class CachedSlots:
    """Reads as :class:`LayerSlots` does, in a cached decoder, which reads a causal prefix once and keeps it.

    Attributes:
        reader: the decoder.
        embeds: the compiled library embeds the slots.
    """

    def __init__(self, model: NarDrafterModel, precision: Precision = EXACT):
        self.model, precision = model, precision = in_fp32(model, precision)
        self.decoder: NarDecoder = model.decoder
        self.embedding = SlotEmbedding(model, precision)
        self.reader = CachedDecoder(model.decoder, precision, self.embedding)
        self.embeds = self.reader.compiled is not None and self.reader.compiled.embeds
        # The token of a mask slot.
        self.hole = -1 if self.embeds else model.decoder.padding_idx

    def begin(self, src_tokens: Tensor, encoder_out: EncoderOut) -> None:
        self.reader.start(
            encoder_out, len(src_tokens), self._capacity(src_tokens), tokens=src_tokens
        )
        self._batch_started(src_tokens)

    def read(self, encoder: FastEncoder | StockEncoder, net_input: Mapping[str, Tensor]) -> None:
        source = net_input["src_tokens"]
        self.reader.encode(encoder, net_input, self._capacity(source))
        self._batch_started(source)

    def _capacity(self, src_tokens: Tensor) -> int:
        return src_tokens.size(1) + self.decoder.block_size

    def _batch_started(self, src_tokens: Tensor) -> None:
        # Tokens whose keys and values stand in the cache for good.
        self.cached = [0] * len(src_tokens)
        self.device = src_tokens.device

    def block_features(self, prefixes: Sequence[Sequence[int]], block_size: int) -> Tensor:
        window = Window(*self._where(prefixes, block_size), block_size, self.device)
        return self.reader.features(window).unflatten(0, (-1, block_size))

    def _where(
        self, prefixes: Sequence[Sequence[int]], block_size: int
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        """Tokens, starts, widths and block starts of the window that the slots behind the prefixes are in."""
        decoder = self.decoder
        # Masks have no row in the table of embeddings.
        holes = [self.hole] * (block_size - decoder.shift)
        opening = [decoder.dictionary.eos()] * decoder.shift
        starts = list(map(min, self.cached, map(len, prefixes)))
        flat: list[int] = []
        widths: list[int] = []
        for start, prefix in zip(starts, prefixes, strict=True):
            tokens = [*opening, *prefix][start:] + holes
            flat += tokens
            widths.append(len(tokens))
        if not decoder.causal_prefix:
            return flat, starts, widths, [0] * len(widths)
        self.cached = list(map(len, prefixes))
        return flat, starts, widths, [width - block_size for width in widths]

    @property
    def grows(self) -> bool:
        """Tells whether the compiled library can read the slots and grow trees of them."""
        return self.embeds and self.reader.packed.project_out is None

    @property
    def on_grids(self) -> bool:
        """Tells whether PyTorch or a GPU can read the slots."""
        return not self.decoder.published

    def block_on_device(
        self, board: Board, owners: Tensor, rows: Rows, shape: Shape, block_size: int
    ) -> tuple[Tensor, Tensor]:
        """:meth:`block_features`, (R, k, C), for the rows of the board, without the host; their last tokens (R,)."""
        decoder, shift = self.decoder, self.decoder.shift
        width = shape.width + shift if decoder.causal_prefix else shape.end
        columns = width + block_size - shift
        form = SlotForm(columns, shift, block_size, decoder.causal_prefix, decoder.padding_idx)
        tokens, places, seen, masked, picked, last = laid_out(board, rows, form)
        keys = keys_beside(shape)
        grid = shape.rows, columns, grid_end(keys) if self.reader.graphs else keys
        window = GridWindow(tokens.flatten(), places.flatten(), grid, seen.flatten())
        self.embedding.masked = masked.flatten()
        features = self.reader.features(window).index_select(0, picked.flatten())
        return features.view(shape.rows, block_size, -1), last

    def slot_logits(self, features: Tensor, int8: bool = False) -> Tensor:
        project = self.reader.packed.draft_projection(int8)
        return project(features.flatten(0, 1)).unflatten(0, features.shape[:2])

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.reader.keep_rows(rows)
        self.cached = [self.cached[row] for row in rows]
