"""All layers of a decoder or an encoder in one call of the compiled library, where it represents them."""

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.modules import gelu, gelu_accurate
from fairseq.utils import relu_squared
from torch import Tensor
from torch.nn.functional import silu

from fairseq_aggdec.engine.linear import FastNorm
from fairseq_aggdec.kernels.library import (
    WORD,
    LayerStruct,
    NormStruct,
    ShapeStruct,
    SourceStruct,
    StepStruct,
    kernels,
    reads,
)
from fairseq_aggdec.windows.transfer import int64_array
from fairseq_aggdec.windows.tree_window import TreeWindow
from fairseq_aggdec.windows.window import Window

# Keys and values of a source, (B, S, 2C) of each layer.
Memory = Sequence[Tensor] | Tensor

PARTS = ("qkv", "own_out", "cross_q", "cross_kv", "cross_out", "expand", "contract")
NORMS = ("own_norm", "cross_norm", "last_norm")
# What an encoder says of a batch, as kernels.cpp numbers it.
WHOLE, PADDED, UNREADABLE = range(3)
# What the expanded features of a layer go through, in the order of kernels/source/activations.h. None: ReLU, which is
# part of the product, or nothing.
ACTIVATIONS = (None, gelu, gelu_accurate, torch.tanh, relu_squared, silu)


def needs_mask(window: Window, span: int | None) -> bool:
    """Tells whether what a window's slots see has to be said by a mask: not where it is the places up to each slot or
    its row's whole window, nor where it is a tree."""
    return span is not None or not (type(window) is Window or isinstance(window, TreeWindow))


class CompiledLayers:
    """The layers of one stack; made by :func:`compile_layers`.

    Args:
        layers: what :class:`~fairseq_aggdec.engine.cached_decoder.CachedDecoder` or
            :class:`~fairseq_aggdec.engine.encoder.FastEncoder` runs one by one; their weights are shared.
        end_norm: follows the last layer, or None.
        embedding: of tokens that :meth:`decode` is given as such, or None.
    """

    def __init__(
        self, layers: Sequence[Any], end_norm: FastNorm | None, embedding: "EmbeddingForm | None"
    ):
        self.kept = layers, end_norm, embedding  # what the structures point to
        self.library = kernels()
        self.structs = (LayerStruct * len(layers))()
        for struct, layer in zip(self.structs, layers, strict=True):
            for name, module in _parts(layer):
                setattr(struct, name, _norm(module) if name in NORMS else module.kernel.struct)
        first = layers[0]
        self.channels = first.own_out.outputs
        self.shape = ShapeStruct(len(layers), self.channels, first.heads, first.pre_norm)
        self.shape.mask = -1
        self.shape.activation = ACTIVATIONS.index(first.feed_forward.activation)
        if end_norm is not None:
            self.shape.end_norm = _norm(end_norm)
        if embedding is not None:
            self.shape.embeddings = embedding.weight.data_ptr()
            self.shape.scale = embedding.scale
            if embedding.slot is not None:
                self.shape.slot = embedding.slot.data_ptr()
            self.shape.copies, self.shape.mask = embedding.copies, embedding.mask
            self.shape.each_layer = embedding.each_layer
            if embedding.norm is not None:
                self.shape.first_norm = _norm(embedding.norm)
        self.embeds = embedding is not None
        self.step = StepStruct()
        self.memory: Memory | None = None
        self.cache: Tensor | None = None
        # Of what a decoder reads of sources: flat, and as the batch before was given it.
        self.room: Tensor | None = None
        self.last_memory: Callable[[], Tensor | None] = lambda: None
        self.addresses = tuple(map(ctypes.addressof, (self.structs, self.shape, self.step)))
        self.library.aggdec_check_layers(*self.addresses[:2])

    def decode(
        self,
        x: Tensor | None,
        window: Window,
        cache: Tensor,
        own_mask: Tensor | None,
        memory: Memory,
        memory_mask: Tensor | None,
        positions: Tensor | None = None,
        queries: Tensor | None = None,
    ) -> Tensor:
        """The window's tokens through all layers and the norm behind them, (N, C); may be ``x`` itself, overwritten.
        What is ``wanted`` of them, (B * wanted, C), where they are embedded here.

        Args:
            x: (N, C); None: they are embedded here, each at its place among ``positions`` (>= end, C), if any. Where
                ``embeds`` is true.
            window: says where the tokens stand.
            cache: (layers, B, capacity, 2C), written in place.
            own_mask: additive, (B or 1, 1, W, end); None: a slot sees what the window says, or everything where
                :func:`needs_mask` is true of it.
            memory: of each layer keys and values (B, S, 2C), all laid out alike, 2C together.
            memory_mask: additive, (B, 1, 1, S), or None.
            queries: (>= end, C), what a mask slot at each position asks the source, where slots copy it.
        """
        tokens: list[int] = []
        depths: list[int] = []
        step = self.step
        if x is not None:
            x, step.wanted = x.float().contiguous(), 0
        else:
            tokens, step.wanted = window.host_tokens(), window.wanted
            x = cache.new_empty(window.rows * window.wanted or len(tokens), self.channels)
            if isinstance(window, TreeWindow):
                depths = window.host_depths
        where = window.starts, window.widths, window.block_starts or (), tokens, depths
        said = self.set_tokens(*where, window.end, positions)
        step.queries = None if queries is None else queries.data_ptr()
        # What needs a mask is not embedded here.
        causal = own_mask is None and (bool(tokens) or not needs_mask(window, None))
        self._set_visible(window, own_mask, causal)
        self.set_memory(cache, memory, memory_mask)
        layers, shape, at = self.addresses
        self.library.aggdec_decode(layers, shape, at, x.data_ptr())
        del said  # until here: the step points to it
        return x

    def set_tokens(
        self,
        starts: Sequence[int],
        widths: Sequence[int],
        blocks: Sequence[int],
        tokens: Sequence[int],
        depths: Sequence[int],
        end: int,
        positions: Tensor | None,
    ) -> Any:
        """Writes into the step where tokens stand, and which they are if they are embedded here; returns what that
        points to. Arguments as of a :class:`~fairseq_aggdec.windows.window.Window`, empty where it has none."""
        step, rows = self.step, len(starts)
        said = int64_array([*starts, *widths, *blocks, *tokens, *depths])
        at, _ = said.buffer_info()
        step.rows, step.starts, step.widths = rows, at, at + WORD * rows
        at += 2 * WORD * rows
        step.blocks = at if blocks else None
        at += WORD * len(blocks)
        step.tokens = at if tokens else None
        step.depths = at + WORD * len(tokens) if depths else None
        step.positions = None if positions is None else positions.data_ptr()
        step.end, step.threads = end, torch.get_num_threads()
        return said

    def set_memory(self, cache: Tensor, memory: Memory, memory_mask: Tensor | None) -> None:
        """Writes into the step what is read beside the window; arguments as for :meth:`decode`."""
        step = self.step
        if cache is not self.cache:
            self.cache, step.cache = cache, cache.data_ptr()
            step.cache_layer, step.cache_row, _, _ = cache.stride()
        if memory is not self.memory:
            self._set_source(memory)
        step.memory_mask = None
        if memory_mask is not None:
            step.memory_mask, step.memory_mask_row = memory_mask.data_ptr(), memory_mask.stride(0)

    def _set_visible(self, window: Window, own_mask: Tensor | None, causal: bool) -> None:
        """Writes into the step what each slot sees; what that points to is kept there, but for the mask."""
        step = self.step
        step.mask = step.seen = None
        step.causal = causal
        if own_mask is not None:
            step.mask = own_mask.data_ptr()
            step.mask_row = own_mask.stride(0) if own_mask.size(0) > 1 else 0
            step.mask_slot = own_mask.stride(2)
        elif isinstance(window, TreeWindow):
            step.seen, step.seen_bytes = window.places()

    def _set_source(self, memory: Memory) -> None:
        step, self.memory = self.step, memory
        if isinstance(memory, Tensor):
            layers, _, step.sources, _ = memory.shape
            layer, step.memory_row, step.memory_position, _ = memory.stride()
            first, layer = memory.data_ptr(), memory.itemsize * layer
            addresses = list(range(first, first + layer * layers, layer))
        else:
            step.memory_row, step.memory_position, _ = memory[0].stride()
            step.sources, addresses = memory[0].size(1), [part.data_ptr() for part in memory]
        self.memory_addresses = int64_array(addresses)
        step.memory, _ = self.memory_addresses.buffer_info()

    def move(self, cache: Tensor, places: Sequence[tuple[int, int, int]]) -> None:
        """Copies keys and values in a cache as :meth:`decode` has it: (row, from which place, to which)."""
        at, _ = (numbers := int64_array([n for place in places for n in place])).buffer_info()
        layer, row, size, _ = cache.stride()
        self.library.aggdec_move(cache.data_ptr(), len(cache), layer, row, size, at, len(places))
        del numbers  # until here

    def read_source(self, states: Tensor) -> Tensor:
        """Keys and values (layers, B, S, 2C) of what an encoder gives, (B, S, C_enc) row after row."""
        rows, length, channels = states.shape
        memory, (layers, shape, _) = self._room_for_memory(rows, length, states), self.addresses
        source = states.data_ptr(), rows * length, channels
        room = memory.data_ptr(), memory.numel()
        self.library.aggdec_read_source(layers, shape, *source, *room, torch.get_num_threads())
        return memory

    def _room_for_memory(self, rows: int, length: int, like: Tensor) -> Tensor:
        """Returns the memory of the batch before if nobody has it any more: fresh memory of the system is slow to
        touch."""
        shape = len(self.structs), rows, length, 2 * self.channels
        count, self.memory = math.prod(shape), None
        if self.room is None or len(self.room) < count or self.last_memory() is not None:
            with torch.inference_mode(False):  # batches in any mode may write it
                self.room = torch.empty(count, dtype=torch.float32, device=like.device)
        memory = self.room[:count].view(shape)
        self.last_memory = weakref.ref(memory)
        return memory

    def encode(
        self,
        tokens: Tensor,
        pad: int,
        types: int,
        room: Tensor,
        positions: Tensor | None = None,
        reader: "CompiledLayers | None" = None,
    ) -> tuple[int, Tensor | None]:
        """Sources through all layers of an encoder; returns whether they are WHOLE, PADDED or UNREADABLE, and what the
        layers of a decoder read of them, as :meth:`read_source` has it.

        Args:
            tokens: (B, S) int64, each less than ``types``; 0: they are embedded already.
            room: (2 B S C + B,), out: states (B, S, C), which are what the first layer reads where ``types`` is 0;
                embeddings (B, S, C) without ``positions`` (N, C), which are added; as int32 how many tokens of each
                source are not ``pad``.
            reader: the layers of the decoder; None: nothing is read.
        """
        rows, length = tokens.shape
        source = SourceStruct(rows, length, pad, types, torch.get_num_threads(), tokens.data_ptr())
        if positions is not None:
            source.positions, source.reach = positions.data_ptr(), positions.size(0)
        source.states = at = room.data_ptr()
        at += (step := room.itemsize * rows * length * self.channels)
        if types:
            source.embeddings = at
        source.lengths, memory = at + step, None
        if reader is not None:
            memory = reader._room_for_memory(rows, length, room)
            source.memory, source.reading = memory.data_ptr(), len(reader.structs)
            source.readers, _, _ = reader.addresses
        layers, shape, _ = self.addresses
        status: int = self.library.aggdec_encode(layers, shape, ctypes.byref(source))
        return status, memory


@dataclass
class EmbeddingForm:
    """Tells how the compiled library embeds tokens: ``norm(scale * weight[token] + position)``.

    Attributes:
        slot: (C,), read in place of ``weight[token]`` by mask slots, which are tokens less than 0; None: 0.
        copies: a mask slot reads a copy of the source as well.
        mask: a token that is read as a mask slot; less than 0: none.
        each_layer: positions are added before every layer instead of here.
    """

    weight: Tensor
    scale: float
    norm: FastNorm | None
    slot: Tensor | None = None
    copies: bool = False
    mask: int = -1
    each_layer: bool = False

    @property
    def reads(self) -> bool:
        """Tells whether the library reads it as it lies in memory."""
        norm = self.norm is None or _reads_norm(self.norm)
        return norm and reads(self.weight) and (self.slot is None or reads(self.slot))


def _norm(module: FastNorm) -> Any:
    assert module.bias is not None
    return NormStruct(module.weight.data_ptr(), module.bias.data_ptr(), module.eps)


def _reads_norm(module: FastNorm) -> bool:
    return all(part is not None and reads(part) for part in (module.weight, module.bias))


def _parts(layer: Any) -> list[tuple[str, Any]]:
    """Norms and products of a layer by their names in the library; an encoder's has no cross-attention."""
    block = layer.feed_forward
    parts = {"expand": block.expand, "contract": block.contract, "last_norm": block.norm}
    parts |= {name: getattr(layer, name, None) for name in (*PARTS[:5], *NORMS[:2])}
    return [(name, module) for name, module in parts.items() if module is not None]


def compile_layers(
    layers: Sequence[Any], end_norm: FastNorm | None = None, embedding: EmbeddingForm | None = None
) -> CompiledLayers | None:
    """The layers for one call, None where the library does not represent one of them; see :class:`CompiledLayers`."""
    activations = {layer.feed_forward.activation for layer in layers}
    if len(activations) != 1 or not activations.issubset(ACTIVATIONS):
        return None
    if len({(layer.heads, layer.pre_norm, layer.feed_forward.pre_norm) for layer in layers}) != 1:
        return None  # the library takes all layers for like the first
    if end_norm is not None and not _reads_norm(end_norm):
        return None
    for layer in layers:
        for _, module in _parts(layer):
            if isinstance(module, FastNorm):
                if not _reads_norm(module):
                    return None
            elif module.kernel is None:
                return None
    if embedding is not None and not embedding.reads:
        embedding = None
    return CompiledLayers(layers, end_norm, embedding)
