"""A layer of a stock Transformer decoder over the tokens of a window, on keys and values kept from those before."""

import functools
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.engine.attention import attend_by_query
from fairseq_aggdec.engine.int8 import attend_alone, linear
from fairseq_aggdec.engine.linear import FastFeedForward, FastLinear, FastNorm
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.windows.window import Window


class DecoderLayer:
    """One decoder layer over the N tokens of a window."""

    def __init__(self, layer: Any, precision: Precision):
        own, cross = layer.self_attn, layer.encoder_attn
        product = functools.partial(linear, precision=precision)
        self.own, self.precision = own, precision
        self.heads = own.num_heads
        self.pre_norm = bool(layer.normalize_before)
        self.qkv = product([own.q_proj, own.k_proj, own.v_proj])
        self.own_out = product([own.out_proj])
        self.own_norm = FastNorm(layer.self_attn_layer_norm)
        self.cross_q = product([cross.q_proj])
        self.cross_kv = product([cross.k_proj, cross.v_proj])
        self.cross_out = product([cross.out_proj])
        self.cross_norm = FastNorm(layer.encoder_attn_layer_norm)
        self.feed_forward = FastFeedForward(layer, product)

    @functools.cached_property
    def own_value(self) -> FastLinear:
        """Self-attention of a position that sees itself only: the output projection of its own value."""
        value, out = self.own.v_proj, self.own.out_proj
        both = nn.Linear(value.in_features, out.out_features, device="meta")
        weight = out.weight.detach() @ value.weight.detach()
        bias = out(value.bias).detach()
        if self.own_out.carried:
            # What is read has that bias already, and so has what the result is added to.
            bias = bias - out.bias.detach() - weight @ out.bias.detach()
        both.weight = nn.Parameter(weight, requires_grad=False)
        both.bias = nn.Parameter(bias, requires_grad=False)
        return FastLinear([both], pack=self.precision.pack)

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
            attended = attend_alone(grid, k, v, mask)
        elif window.fixed and grid.device.type == "cpu":  # --strict
            attended = attend_by_query(grid, k, v, mask)
        else:
            attended = F.scaled_dot_product_attention(grid, k, v, attn_mask=mask)
        return window.from_grid(attended.transpose(1, 2))

    def __call__(
        self,
        x: Tensor,
        window: Window,
        cache: Tensor,
        own_mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
    ) -> Tensor:
        """x (N, C), cache (B, capacity, 2C) written in place, memory (2, B, H, S, D) -> (N, C)."""
        own = self.own_norm(x) if self.pre_norm else x
        if window.alone:
            x = x + self.own_value(own)
        else:
            qkv = self.qkv(own)
            width = qkv.size(-1) // 3
            _write(cache, qkv[:, width:], window)
            seen = self.split(cache[:, : window.end])
            x = self.own_out.add_to(x, self.attend(qkv[:, :width], seen, own_mask, window))
        if not self.pre_norm:
            x = self.own_norm(x)
        q = self.cross_q(self.cross_norm(x) if self.pre_norm else x)
        x = self.cross_out.add_to(x, self.attend(q, memory, memory_mask, window))
        if not self.pre_norm:
            x = self.cross_norm(x)
        return self.feed_forward(x)


def _write(cache: Tensor, kv: Tensor, window: Window) -> None:
    """Stores the window's keys and values (N, 2C) at their positions of the cache (B, capacity, 2C)."""
    if window.level and window.dense:
        cache[:, window.starts[0] : window.end] = kv.view(window.rows, window.width, -1)
    else:
        cache[window.row_of, window.positions] = kv
