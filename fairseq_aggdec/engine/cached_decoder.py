"""The cached decoder: a stock fairseq Transformer decoder that reads a window of several new positions per row.

One call of :meth:`CachedDecoder.features` is the window step of every method: it runs the tokens of a
:class:`~fairseq_aggdec.windows.window.Window` on top of the keys and values that each row has committed. Rollback needs
no call: the next window of a row starts at the first position that was not kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor

from fairseq_aggdec.engine.compiled import Memory, needs_mask
from fairseq_aggdec.engine.encoder import EncoderOut, FastEncoder, StockEncoder, as_dtype_of
from fairseq_aggdec.engine.graphs.start_graphs import StartGraphs, grid_length
from fairseq_aggdec.engine.graphs.window_graphs import KeysValues, WindowGraphs
from fairseq_aggdec.engine.heads import DecoderHeads
from fairseq_aggdec.engine.int8 import linear
from fairseq_aggdec.engine.kv_cache import KVCache
from fairseq_aggdec.engine.linear import some_outputs
from fairseq_aggdec.engine.packed_decoder import PackedDecoder, TokenEmbedding
from fairseq_aggdec.engine.precision import EXACT, Precision, in_fp32
from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.models.blockwise_transformer import HeadedDecoder
from fairseq_aggdec.windows.grid import GridWindow
from fairseq_aggdec.windows.window import Window


class CachedDecoder:
    """A stock Transformer decoder over the keys and values of a batch with ragged rows.

    Args:
        decoder, precision, embedding: as of a :class:`~fairseq_aggdec.engine.packed_decoder.PackedDecoder`.

    Attributes:
        packed: the weights.
        cache: keys and values of the batch.
        heads: block heads; None: the decoder has none.
        types: the only ones (M,) int64 that a shortlist leaves; None: all. chosen: the projection to these.
        graphs: captured steps; None: on a CPU, or not asked for.
    """

    def __init__(
        self,
        decoder: TransformerDecoderBase,
        precision: Precision = EXACT,
        embedding: TokenEmbedding | None = None,
    ):
        decoder, precision = in_fp32(decoder, precision)
        self.decoder = decoder
        self.packed = PackedDecoder(decoder, precision, embedding)
        self.embedding, self.compiled = self.packed.embedding, self.packed.compiled
        headed = isinstance(decoder, HeadedDecoder)
        self.heads = DecoderHeads(self.packed) if headed else None
        self.graphs: WindowGraphs | None = None
        self.like = decoder.embed_tokens.weight  # device and dtype of what the layers read
        device = self.like.device
        self.on_gpu = device.type == "cuda"
        if self.on_gpu:
            gpu.operators.compile_ahead(device, self.like.dtype)
        if precision.graphs and self.on_gpu:
            self.graphs = WindowGraphs(self.run_on_grid, device, self.embedding.memories)
            self.embedding.replaced = self.graphs.forget
        # With --strict PyTorch reads the entries.
        hides = self.compiled is not None and not precision.strict
        self.cache = KVCache(self.graphs, self.compiled, hides)
        self.views: tuple[Memory, list[Tensor]] | None = None
        self.starts: StartGraphs | None = None

    @property
    def bytes_of_a_key(self) -> int:
        """Memory for a key and its value in all layers."""
        numbers = len(self.packed.layers) * 2 * self.decoder.embed_dim
        return int(numbers * self.like.element_size())

    def start(
        self,
        encoder_out: EncoderOut,
        rows: int,
        capacity: int,
        tokens: Tensor | None = None,
    ) -> None:
        """Forgets all rows and starts a new batch.

        Args:
            encoder_out: fairseq's encoder output, ``encoder_out[0]`` of shape (S, B, C_enc).
            rows: B, the number of sentences.
            capacity: positions per row to make room for at first; the room grows when needed.
            tokens: (B, S), which only some embeddings need.
        """
        encoder_out = as_dtype_of(encoder_out, self.like)
        shape = len(self.packed.layers), rows, capacity, 2 * self.decoder.embed_dim
        memory, mask = self.packed.read_source(encoder_out, tokens)
        self.cache.start(memory, mask, shape, self.like)
        self._batch_started(encoder_out, rows)

    def encode(
        self, encoder: FastEncoder | StockEncoder, net_input: Mapping[str, Tensor], capacity: int
    ) -> EncoderOut:
        """Encodes a batch and starts it as :meth:`start` does; on a GPU in one captured graph, if its size has one.

        Args:
            net_input: ``src_tokens`` (B, S).
            capacity: as of :meth:`start`.
        """
        source, encoder_out = net_input["src_tokens"], None
        self.cache.memory = ()  # the next batch may take it
        if self.graphs is not None and isinstance(encoder, FastEncoder):
            if self.starts is None or self.starts.encoder is not encoder:
                self.starts = StartGraphs(self.graphs, encoder, self.packed.read_source)
            like = self.decoder.embed_tokens.weight.new_empty(
                len(self.packed.layers), 2 * self.decoder.embed_dim
            )
            encoder_out = self.starts(source, capacity, like)
        if encoder_out is None:
            if isinstance(encoder, FastEncoder):
                fits = encoder.channels == self.packed.source_width
                encoder_out = encoder.encode(self.compiled if fits else None, net_input)
            else:
                encoder_out = encoder(net_input)
            self.start(encoder_out, source.size(0), capacity, source)
        else:
            assert self.graphs is not None
            self.cache.take(*self.graphs.taken(len(source), grid_length(source.size(1))))
            self._batch_started(encoder_out, len(source))
        return encoder_out

    def _batch_started(self, encoder_out: EncoderOut, rows: int) -> None:
        self.views = None
        self.types: Tensor | None = None
        self.chosen = self.packed.project_vocabulary
        if self.heads is not None:
            self.heads.start(encoder_out, rows)

    def restrict(self, types: Tensor) -> None:
        """Until the next batch, :meth:`logits` are -inf but for the given types (M,) int64, the only ones computed."""
        part = some_outputs(self.decoder.output_projection, types)
        # Laying the weight out anew for every batch pays where the compiled library decodes the batch alone.
        pack = self.compiled is not None and self.packed.precision.pack
        self.types = types.contiguous()
        self.chosen = linear([part], replace(self.packed.precision, pack=pack))

    def features(self, window: Window) -> Tensor:
        """Runs a window and stores its keys and values: tokens (N,) -> features (N, C_out), or (B * wanted, C_out)."""
        if self.compiled is None or window.alone or window.fixed:
            x = window.of_wanted(self._run(window))
        else:
            x = self._run_compiled(window)
        project_out = self.packed.project_out
        return x if project_out is None else project_out(x)

    def _run_compiled(self, window: Window) -> Tensor:
        compiled, cache, span = self.compiled, self.cache, self.packed.span
        assert compiled is not None
        if window.end > cache.capacity:
            cache.reserve(window.end)
        x = own_mask = positions = None
        if needs_mask(window, span):
            own_mask = window.mask(cache.entries.dtype, span)
            x = self._embedded(window)
        elif not compiled.embeds:
            x = self._embedded(window)
        elif self.embedding.positioned:
            positions = self.embedding.positions(window.reach)
        entries = cache.entries, own_mask, cache.memory, cache.memory_mask
        output = compiled.decode(x, window, *entries, positions, self.embedding.queries)
        return output if x is None else window.of_wanted(output)

    def read(
        self, window: Window, temperature: float, symbols: gpu.logits.RuledTokens | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features and logits of a window, as :meth:`features` and :meth:`logits` give them, on a GPU by one launch.

        Args:
            symbols: given where it is wanted what parts of the logits come to.

        Returns:
            the features, the logits, and what :func:`~fairseq_aggdec.kernels.gpu.logits.logits` says of their parts.
        """
        project, norm = self.packed.project_vocabulary, self.packed.last_norm
        other = self.heads or self.types is not None or self.packed.project_out is not None
        if other or norm is None or not (self.on_gpu and isinstance(window, GridWindow)):
            features = self.features(window)
            return features, self.logits(features, temperature), None
        x = self._run(window, normed=False)
        if temperature != 1.0:
            symbols = None
        logits, features, parts = gpu.logits.project(project, x, norm, self.packed.runs, symbols)
        return features, logits if temperature == 1.0 else logits.div_(temperature), parts

    def _run(self, window: Window, normed: bool = True) -> Tensor:
        cache = self.cache
        # Before a shape is chosen: it must not depend on how much room there was.
        if not window.alone:
            cache.reserve(window.end)
        if self.graphs is not None:
            if isinstance(window, GridWindow) and (kept := self.graphs.part(*window.size)):
                return self.run_on_grid(window.tokens, window, kept, normed)
            if self.embedding.positioned:
                self.embedding.positions(window.reach)
            # Other embeddings than the stock one are no part of the graph.
            read_input = (
                (lambda: window.tokens) if self.embedding.stock else lambda: self._embedded(window)
            )
            if (x := self.graphs.step(window, read_input)) is not None:
                return x
        if self.views is None or self.views[0] is not cache.memory:
            self.views = cache.memory, self.packed.split(cache.memory)
        x = self._embedded(window)
        entries = cache.entries, self.views[1], cache.memory_mask
        return self.packed.run(x, window, *entries, normed)

    def _embedded(self, window: Window) -> Tensor:
        return self.embedding(window, self.cache.memory, self.cache.memory_mask)

    def run_on_grid(
        self, tokens_or_features: Tensor, window: GridWindow, kept: KeysValues, normed: bool = True
    ) -> Tensor:
        """A window over other keys and values: tokens (N,) or what is read in their place (N, C) -> (N, C)."""
        x = tokens_or_features
        if not tokens_or_features.is_floating_point():
            x = self.embedding(window, kept.memory, kept.memory_mask)
        memory = self.packed.split(kept.memory)
        return self.packed.run(x, window, kept.cache, memory, kept.memory_mask, normed)

    def logits(self, features: Tensor, temperature: float) -> Tensor:
        """(N, C_out) -> (N, V), divided by the temperature."""
        if self.heads is not None:
            features = self.heads.first(features)
        if self.types is None:
            logits = self.packed.project_vocabulary(features)
        else:
            types = self.decoder.output_projection.out_features
            logits = features.new_full((len(features), types), -torch.inf)
            logits[:, self.types] = self.chosen(features)
        return logits if temperature == 1.0 else logits.div_(temperature)

    @property
    def reads_trees(self) -> bool:
        """Tells whether windows may branch.

        Local attention counts places, which are no positions in a tree. In 8 bits a token must get the same numbers in
        any window: the compiled library leaves hidden keys out, PyTorch's sums round by what is between.
        """
        exact = not self.packed.precision.int8 or self.compiled is not None
        return self.packed.span is None and exact

    def move(self, places: Sequence[tuple[int, int, int]]) -> None:
        """Copies keys and values: (row, from which place of the cache, to which)."""
        self.cache.move(places)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps the given rows in the given order."""
        self.cache.keep_rows(rows)
        if self.heads is not None:
            self.heads.keep_rows(rows)

    def gather_rows(self, rows: Tensor, within: int = 0) -> None:
        """Makes row ``rows[i]``, (R,) int64, the new row i; rows may come several times or not at all.

        ``within``: rows stay within their sentence and have written that many positions; 0: they come from anywhere.
        """
        if within:
            self.cache.reorder(rows, within)
        else:
            self.cache.gather_rows(rows)

    def reserve(self, end: int, reach: int) -> None:
        """Makes room for windows up to ``end`` places and ``reach`` positions: a captured step cannot."""
        self.cache.reserve(end)
        if self.embedding.positioned:
            self.embedding.positions(reach)
