"""A layer of a stock Transformer decoder over packed weights, and all layers one by one."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.engine import attention
from fairseq_aggdec.engine.encoder import FastLayer
from fairseq_aggdec.engine.int8 import Int8Linear, linear
from fairseq_aggdec.engine.linear import FastLinear, FastNorm, add, read
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.kernels.gpu import products
from fairseq_aggdec.windows.grid import GridWindow, Sight
from fairseq_aggdec.windows.window import Window


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
        """Begin of the residual connection, x (N, C) or ``norm(x)``, and what the slots read of a source (N, C)."""
        asks, before = self.cross_q, self.pre_norm
        at_once = fused and self.fuses(x, window, memory.size(3))
        at_once = at_once and attention.crosses(x.device, x.dtype)
        if not at_once or norm is None or isinstance(asks, Int8Linear):
            x, q = read(asks, x, norm, before, fused)
            return x, self.attend_source(q, window, memory, memory_mask)
        assert asks.transposed is not None
        kept = None if before else torch.empty_like(x)
        given = norm.parameters, memory, memory_mask, window.width, kept
        attended = attention.cross_attend(x, asks.transposed, asks.bias, *given)
        return x if kept is None else kept, attended

    def attend_source(
        self, q: Tensor, window: Window, memory: Tensor, memory_mask: Tensor | None
    ) -> Tensor:
        """Attention to the source: q (N, C), memory (2, B, H, S, D) -> (N, C)."""
        if self.fuses(q, window, memory.size(3)):
            return attention.attend_source(q, memory, memory_mask, window.width)
        return self.attend(q, memory, memory_mask, window)


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
    normed: bool = True,
) -> Tensor:
    """Layers, one by one, and a norm: (N, C) -> (N, C); arguments as of a :class:`DecoderLayer`, for all of them.

    Without ``normed`` the last norm is missing, be it of the last layer or behind all.
    """
    norm: FastNorm | None = None
    # unbind: to iterate over a tensor takes longer
    for layer, kept, source in zip(layers, cache.unbind(0), memory, strict=True):
        x = layer(x, norm, window, kept, seen, source, memory_mask, fused)
        norm = None if layer.pre_norm else layer.feed_forward.norm
    missing = [one for one in (norm, last) if one is not None]
    for one in missing if normed else missing[:-1]:
        x = products.normed(x, one.parameters) if fused else one(x)
    return x
