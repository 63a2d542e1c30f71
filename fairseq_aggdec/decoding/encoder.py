"""The encoder of a stock fairseq Transformer with packed weights; any other encoder runs as it is."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor

from fairseq_aggdec.decoding.linear import FastFeedForward, FastLinear, FastNorm
from fairseq_aggdec.decoding.support import attention_gap, overridden

EncoderOut = dict[str, Any]


def encoder_gap(encoder: Any) -> str | None:
    """What keeps :class:`FastEncoder` from representing ``encoder``, or None when nothing does."""
    if not isinstance(encoder, TransformerEncoderBase):
        return f"{type(encoder).__name__} is not a Transformer encoder"
    methods = ("forward", "forward_torchscript", "forward_scriptable", "forward_embedding")
    if gap := overridden(encoder, TransformerEncoderBase, methods):
        return gap
    for layer in encoder.layers:
        if not isinstance(layer, TransformerEncoderLayerBase):
            return f"layers of type {type(layer).__name__}"
        if gap := overridden(layer, TransformerEncoderLayerBase, ("forward",)):
            return gap
        if gap := attention_gap(layer.self_attn):
            return gap
        if getattr(layer, "return_fc", False):
            return "layers that return their feed-forward results"
    return None


class _Layer:
    """One encoder layer over (B, S, C)."""

    def __init__(self, layer: Any, pack: bool):
        attention = layer.self_attn
        self.heads = attention.num_heads
        self.qkv = FastLinear([attention.q_proj, attention.k_proj, attention.v_proj], pack=pack)
        self.out = FastLinear([attention.out_proj], pack=pack)
        self.norm = FastNorm(layer.self_attn_layer_norm)
        self.pre_norm = bool(layer.normalize_before)
        self.feed_forward = FastFeedForward(layer, functools.partial(FastLinear, pack=pack))

    def __call__(self, x: Tensor, hidden_keys: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm(x) if self.pre_norm else x)
        # (B, S, 3C) -> 3 x (B, H, S, D)
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=hidden_keys)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        return self.feed_forward(x if self.pre_norm else self.norm(x))


class FastEncoder:
    """``TransformerEncoderBase.forward`` in evaluation mode: the same dictionary, packed weights underneath.

    Where nothing is padded there is no padding mask: whoever asked it on a GPU would wait for all layers.
    """

    def __init__(self, encoder: TransformerEncoderBase, pack: bool):
        self.encoder = encoder
        self.layers = [_Layer(layer, pack) for layer in encoder.layers]
        self.norm = None if encoder.layer_norm is None else FastNorm(encoder.layer_norm)

    def __call__(self, net_input: Mapping[str, Tensor]) -> EncoderOut:
        src_tokens = net_input["src_tokens"]  # (B, S)
        padding = src_tokens.eq(self.encoder.padding_idx)
        x, embedding = self.encoder.forward_embedding(src_tokens)  # (B, S, C)
        hidden_keys, padded = None, bool(padding.any())
        if padded:
            x = x.masked_fill(padding.unsqueeze(-1), 0)
            hidden_keys = torch.zeros_like(padding, dtype=x.dtype).masked_fill_(
                padding, float("-inf")
            )
            hidden_keys = hidden_keys[:, None, None, :]
        for layer in self.layers:
            x = layer(x, hidden_keys)
        if self.norm is not None:
            x = self.norm(x)
        return {
            "encoder_out": [x.transpose(0, 1)],  # S x B x C, as fairseq has it
            "encoder_padding_mask": [padding] if padded else [],
            "encoder_embedding": [embedding],
            "encoder_states": [],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~padding).sum(dim=1, dtype=torch.int32).reshape(-1, 1)],
        }


class StockEncoder:
    """Any fairseq encoder, called as stock generation calls it; a mask that hides nothing is left out here, too."""

    def __init__(self, encoder: Any):
        self.encoder = encoder

    def __call__(self, net_input: Mapping[str, Tensor]) -> EncoderOut:
        out: EncoderOut = self.encoder.forward_torchscript(net_input)
        masks = out.get("encoder_padding_mask") if isinstance(out, dict) else None
        if isinstance(masks, list) and masks and not bool(masks[0].any()):
            out["encoder_padding_mask"] = []
        return out
