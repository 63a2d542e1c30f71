"""The encoder of a stock fairseq Transformer with packed weights; any other encoder runs as it is."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from fairseq_aggdec.engine.compiled import (
    PADDED,
    UNREADABLE,
    CompiledLayers,
    EmbeddingForm,
    Memory,
    compile_layers,
)
from fairseq_aggdec.engine.graphs.start_graphs import PLACED
from fairseq_aggdec.engine.int8 import linear
from fairseq_aggdec.engine.linear import FastFeedForward, FastNorm
from fairseq_aggdec.engine.plain.kinds import PARTS
from fairseq_aggdec.engine.plain.support import encoder_gap, gap_of
from fairseq_aggdec.engine.precision import EXACT, Precision, in_fp32
from fairseq_aggdec.engine.slot_attention import attend_alone
from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.windows.masks import additive_mask
from fairseq_aggdec.windows.transfer import on_host

EncoderOut = dict[str, Any]


class Encoded(EncoderOut):
    """fairseq's encoder output of a batch that the compiled library has encoded, made when somebody reads it.

    Args:
        tokens: (B, S), of the sources.
        channels: C.

    Attributes:
        room: (2 B S C + B,), see :meth:`~fairseq_aggdec.engine.compiled.CompiledLayers.encode`.
        padding: (B, S) bool; none where nothing is padded.
        memory: keys and values (layers, B, S, 2C) for the layers ``reader`` of a decoder; -1: for none.
    """

    memory: Memory = ()
    reader: CompiledLayers | int | None = -1

    def __init__(self, tokens: Tensor, channels: int):
        self.rows, self.length = tokens.shape
        self.channels, self.padding = channels, list[Tensor]()
        size = self.rows * (2 * self.length * channels + 1)
        # The default device may be another.
        self.room = torch.empty(size, dtype=torch.float32, device=tokens.device)

    @property
    def of_tokens(self) -> Tensor:
        """(2, B, S, C): states and embeddings."""
        return self.room[: -self.rows].view(2, self.rows, self.length, self.channels)

    def made(self) -> EncoderOut:
        states, embedding = self.of_tokens
        lengths = self.room[-self.rows :].view(torch.int32).unsqueeze(1)
        return _output(states, self.padding, lengths, embedding)

    def __missing__(self, name: str) -> Any:
        if self:
            raise KeyError(name)
        self.update(self.made())
        return self[name]


class FastLayer:
    """Base of the layers of encoders and decoders: self-attention and feed-forward block, packed."""

    def __init__(self, layer: Any, precision: Precision):
        attention = layer.self_attn
        product = functools.partial(linear, precision=precision)
        self.heads, self.precision = attention.num_heads, precision
        self.qkv = product([attention.q_proj, attention.k_proj, attention.v_proj])
        self.own_out = product([attention.out_proj])
        self.own_norm = FastNorm(layer.self_attn_layer_norm)
        self.pre_norm = bool(layer.normalize_before)
        self.feed_forward = FastFeedForward(layer, product)

    @property
    def products(self) -> list[Any]:
        """The linear layers that read few rows."""
        return [self.qkv, self.own_out, self.feed_forward.expand, self.feed_forward.contract]

    @property
    def norms(self) -> list[FastNorm]:
        return [self.own_norm, self.feed_forward.norm]

    @property
    def allows_kernels(self) -> bool:
        """Tells whether kernels of a GPU may take the place of PyTorch's operators: these sum in another order."""
        cublas = self.precision.tf32 and self.own_norm.weight.dtype is torch.float32
        return self.feed_forward.activation is None and not (self.precision.strict or cublas)


def parts_of(
    layers: Sequence[FastLayer], norm: FastNorm | None, like: Tensor
) -> tuple[list[Any], list[FastNorm], bool]:
    """Linear layers and norms of a model, and whether kernels of a GPU may take the place of PyTorch's operators.

    Args:
        layers: of an encoder or a decoder.
        norm: behind them.
        like: has the device of the model.
    """
    allowed = like.device.type == "cuda" and len({layer.pre_norm for layer in layers}) == 1
    allowed = allowed and all(layer.allows_kernels for layer in layers)
    norms = [one for layer in layers for one in layer.norms]
    products = [one for layer in layers for one in layer.products]
    return products, [*norms, *([] if norm is None else [norm])], allowed


class _EncoderLayer(FastLayer):
    """One encoder layer over (B, S, C)."""

    def __call__(self, x: Tensor, hidden_keys: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.own_norm(x) if self.pre_norm else x)
        # (B, S, 3C) -> 3 x (B, H, S, D)
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attend = (
            attend_alone
            if self.precision.int8
            else torch.nn.functional.scaled_dot_product_attention
        )
        attended = attend(q, k, v, hidden_keys)
        x = x + self.own_out(attended.transpose(1, 2).reshape(batch, length, -1))
        return self.feed_forward(x if self.pre_norm else self.own_norm(x))

    def at_once(
        self, x: Tensor, norm: FastNorm | None, hidden_keys: Tensor, layers: gpu.products.Layers
    ) -> tuple[Tensor, FastNorm | None]:
        """The layer over (N, C) in five launches of a GPU; ``norm``: the last of the layer before, if x lacks it still.

        Returns:
            (N, C), and the norm that it lacks.
        """
        block, before = self.feed_forward, self.pre_norm
        first, second = (self.own_norm, block.norm) if before else (norm, self.own_norm)
        read, add = gpu.products.read, gpu.products.add
        x, qkv = read(self.qkv, x, first, before, layers)
        x = add(self.own_out, x, gpu.attention.attend_all(qkv, hidden_keys, self.heads), layers)
        x, hidden = read(block.expand, x, second, before, layers)
        return add(block.contract, x, hidden, layers), None if before else block.norm


class FastEncoder:
    """``TransformerEncoderBase.forward`` in evaluation mode, over packed weights; it returns fairseq's dictionary.

    Without padding the output has no padding mask: to test a mask on a GPU would wait for all layers. States at padding
    differ from stock's; attention never reads them.

    Args:
        encoder: its weights are read, never changed.
        precision: how to compute.
    """

    def __init__(self, encoder: TransformerEncoderBase, precision: Precision = EXACT):
        encoder, precision = in_fp32(encoder, precision)
        self.encoder, self.padding_idx = encoder, encoder.padding_idx
        self.types, self.channels = encoder.embed_tokens.weight.shape
        self.layers = [_EncoderLayer(layer, precision) for layer in encoder.layers]
        self.norm = None if encoder.layer_norm is None else FastNorm(encoder.layer_norm)
        self.compiled = compile_layers(self.layers, self.norm, self._form())
        self.runs = self._runs()
        self.table: Tensor | None = None  # of positions: (longest source so far or more, C)

    def _form(self) -> EmbeddingForm | None:
        """The embedding for the compiled library; None where PyTorch embeds."""
        encoder = self.encoder
        if encoder.layernorm_embedding is not None or encoder.quant_noise is not None:
            return None
        if gap_of(encoder.embed_tokens, PARTS["embed_tokens"], "embed_tokens") is not None:
            return None  # it computes something else than its weight says, or more
        return EmbeddingForm(encoder.embed_tokens.weight, float(encoder.embed_scale), None)

    def _runs(self) -> gpu.products.Layers:
        """Decides whether kernels of a GPU or PyTorch's operators read sources of few tokens."""
        weight, layers, norm = self.encoder.embed_tokens.weight, self.layers, self.norm
        products, norms, allowed = parts_of(layers, norm, weight)
        allowed = allowed and self._form() is not None
        heads = [layer.heads for layer in layers]
        return gpu.embedding.source_layers(products, norms, heads, weight, allowed)

    def __call__(self, net_input: Mapping[str, Tensor]) -> EncoderOut:
        output = self.encode(None, net_input)
        return output.made() if isinstance(output, Encoded) else output

    def encode(self, reader: CompiledLayers | None, net_input: Mapping[str, Tensor]) -> EncoderOut:
        """fairseq's encoder output; :class:`Encoded` where the compiled library computes it.

        Args:
            reader: the layers of a decoder, whose keys and values are wanted, too; None: none are.
            net_input: ``src_tokens`` (B, S).
        """
        src_tokens, pad = net_input["src_tokens"], self.encoder.padding_idx  # (B, S)
        if self.compiled is not None:
            return self._compiled(src_tokens, reader)
        padding: Tensor | None = None
        if any(pad in row for row in on_host(src_tokens).tolist()):
            padding = src_tokens.eq(pad)
            lengths = (~padding).sum(dim=1, dtype=torch.int32).reshape(-1, 1)
        else:
            rows, length = src_tokens.shape
            lengths = src_tokens.new_full((rows, 1), length, dtype=torch.int32)
        x, embedding = self.encoder.forward_embedding(src_tokens)  # (B, S, C)
        masks = [] if padding is None else [padding]
        return _output(self._plain(x, padding), masks, lengths, embedding)

    def reads(self, length: int) -> bool:
        """Tells whether :meth:`on_grid` can read sources of that length."""
        return self.encoder.quant_noise is None and length <= int(self.encoder.max_positions())

    def on_grid(self, tokens: Tensor, kept: Sequence[Tensor] = ()) -> EncoderOut:
        """:meth:`__call__` without the host, for tokens (R, L) after :meth:`positions` was called; there is padding.

        Args:
            tokens: (R, L).
            kept: where embeddings, padding and lengths may be written, as :func:`gpu.embedding.fused_sources` does.
        """
        read = self.runs.either(tokens.numel(), self._read_fused, self._read_plain)
        return read(tokens, kept)

    def _read_plain(self, tokens: Tensor, kept: Sequence[Tensor]) -> EncoderOut:
        """:meth:`on_grid` by PyTorch's operators, which write new tensors."""
        padding, encoder = tokens.eq(self.padding_idx), self.encoder
        real = ~padding
        x = embedding = encoder.embed_scale * encoder.embed_tokens(tokens)
        if self.table is not None:
            x = x + F.embedding((real.cumsum(1) - 1).clamp_(min=0), self.table)
        placed = {PLACED: [x]}
        if encoder.layernorm_embedding is not None:
            x = encoder.layernorm_embedding(x)
        lengths = real.sum(1, keepdim=True)
        return placed | _output(self._plain(x, padding), [padding], lengths, embedding)

    def _read_fused(self, tokens: Tensor, kept: Sequence[Tensor]) -> EncoderOut:
        """:meth:`on_grid` by kernels of a GPU."""
        encoder = self.encoder
        tables = gpu.embedding.EmbeddingTables(
            encoder.embed_tokens.weight, float(encoder.embed_scale), self.table
        )
        embeddings, hidden, lengths, placed, mask = gpu.embedding.fused_sources(
            tokens, tables, self.padding_idx, kept
        )
        x, norm = placed.flatten(0, 1), None
        for layer in self.layers:
            x, norm = layer.at_once(x, norm, mask, self.runs)
        for missing in (norm, self.norm):
            x = x if missing is None else gpu.products.norm(missing, x, self.runs)
        states = x.view_as(placed)
        return {PLACED: [placed]} | _output(states, [hidden], lengths, embeddings)

    def positions(self, length: int) -> Tensor | None:
        """(N, C) position embeddings of a source of that length, or of as much as has positions; None: it has none."""
        encoder, table = self.encoder, self.table
        if table is not None and table.size(0) >= length:
            return table
        if encoder.embed_positions is None:
            return None
        most = encoder.max_positions()
        if table is None or table.size(0) < min(length, most):
            self.make_table(min(max(256, 2 * length), most))
        return self.table

    def make_table(self, length: int) -> None:
        """Makes the table of positions for sources of up to that length."""
        self.table = position_table(self.encoder, length, self.channels)

    def _plain(self, x: Tensor, padding: Tensor | None) -> Tensor:
        hidden_keys = None
        if padding is not None:
            x = x.masked_fill(padding.unsqueeze(-1), 0)
            hidden_keys = additive_mask(padding, x.dtype)
        for layer in self.layers:
            x = layer(x, hidden_keys)
        return x if self.norm is None else self.norm(x)

    def _compiled(self, src_tokens: Tensor, reader: CompiledLayers | None) -> Encoded:
        compiled, encoder, pad = self.compiled, self.encoder, self.padding_idx
        assert compiled is not None
        encoded, tokens, said = Encoded(src_tokens, self.channels), src_tokens, UNREADABLE
        if tokens.dtype is not torch.int64 or not tokens.is_contiguous():
            tokens = tokens.to(torch.int64).contiguous()
        # What PyTorch does not embed is refused by it.
        if compiled.embeds and src_tokens.dtype in (torch.int64, torch.int32):
            table = self.positions(encoded.length)
            said, memory = compiled.encode(tokens, pad, self.types, encoded.room, table, reader)
        if said == UNREADABLE:  # PyTorch embeds, or says what it cannot
            x, embedding = encoder.forward_embedding(src_tokens)
            if x.size(-1) != self.channels:
                raise ValueError(
                    f"the encoder embeds a token in {x.size(-1)} numbers, its layers read {self.channels}"
                )
            for room, part in zip(encoded.of_tokens, (x, embedding), strict=True):
                room.copy_(part)
            said, memory = compiled.encode(tokens, pad, 0, encoded.room, reader=reader)
        if said == PADDED:
            encoded.padding.append(src_tokens.eq(pad))
        if memory is not None:
            encoded.reader, encoded.memory = reader, memory
        return encoded


def _output(
    states: Tensor, padding: list[Tensor], lengths: Tensor, embedding: Tensor
) -> EncoderOut:
    """fairseq's dictionary, of states and embeddings (B, S, C), padding (B, S) bool if any, and lengths (B, 1)."""
    return {
        "encoder_out": [states.transpose(0, 1)],  # S x B x C, as fairseq has it
        "encoder_padding_mask": padding,
        "encoder_embedding": [embedding],
        "encoder_states": [],
        "fc_results": [],
        "src_tokens": [],
        "src_lengths": [lengths],
    }


def position_table(part: Any, size: int, width: int) -> Tensor:
    """(size, width) position embeddings of a sentence without padding, contiguous as the compiled library reads them.

    Args:
        part: fairseq's encoder or decoder.
    """
    weight = part.embed_tokens.weight
    sentence = weight.new_full((1, size), part.padding_idx + 1, dtype=torch.long)
    rows: Tensor = part.embed_positions(sentence)[0].detach().to(weight.dtype)
    return rows.expand(-1, width).contiguous()


def as_dtype_of(encoder_out: EncoderOut, like: Tensor) -> EncoderOut:
    """The output in the dtype of ``like``: packed models in bfloat16 compute in fp32, stock modules do not."""
    names = "encoder_out", "encoder_embedding"
    fp32 = isinstance(encoder_out, Encoded) and like.dtype is torch.float32
    if fp32 or encoder_out["encoder_out"][0].dtype is like.dtype:
        return encoder_out
    return encoder_out | {
        name: [states.to(like.dtype) for states in encoder_out[name]] for name in names
    }


def packed_encoder(encoder: Any, precision: Precision) -> "FastEncoder | StockEncoder":
    """A :class:`FastEncoder` if all layers are stock, else a :class:`StockEncoder`."""
    if encoder_gap(encoder) is not None:
        return StockEncoder(encoder)
    return FastEncoder(encoder, precision)


class StockEncoder:
    """Any fairseq encoder, called as stock generation calls it; a padding mask without padding is dropped."""

    def __init__(self, encoder: Any):
        self.encoder = encoder

    def __call__(self, net_input: Mapping[str, Tensor]) -> EncoderOut:
        arguments = {name: part for name, part in net_input.items() if name != "prev_output_tokens"}
        out: EncoderOut = self.encoder.forward_torchscript(arguments)
        masks = out.get("encoder_padding_mask") if isinstance(out, dict) else None
        if isinstance(masks, list) and masks and not bool(masks[0].any()):
            out["encoder_padding_mask"] = []
        return out


def reorders_only(encoder: Any, encoder_out: Any, rows: int) -> bool:
    """Tells whether ``reorder_encoder_out()`` keeps the numbers of a batch; stock decoding calls it. It may drop
    entries.

    Args:
        encoder_out: what the encoder has returned for the batch; it may be changed.
        rows: of the batch.
    """
    before = tree_map_only(Tensor, Tensor.clone, encoder_out)
    device = next((part.device for part in _tensors(before)), None)
    after = encoder.reorder_encoder_out(encoder_out, torch.arange(rows, device=device))
    if isinstance(before, dict) and isinstance(after, dict):
        before = {name: part for name, part in before.items() if name in after}
    ours, theirs = _tensors(before), _tensors(after)
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def _tensors(parts: Any) -> list[Tensor]:
    return [part for part in tree_leaves(parts) if isinstance(part, Tensor)]
