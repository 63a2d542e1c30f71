"""A layer of a stock Transformer decoder over packed weights, and all layers one by one."""

import functools
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_aggdec.engine.encoder import FastLayer
from fairseq_aggdec.engine.int8 import linear
from fairseq_aggdec.engine.linear import FastLinear, FastNorm
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.engine.slot_attention import attend_alone, attend_by_query
from fairseq_aggdec.kernels import gpu
from fairseq_aggdec.windows.grid import Visibility
from fairseq_aggdec.windows.window import Window


class DecoderLayer(FastLayer):
    """One decoder layer over the N tokens of a window."""

    def __init__(self, layer: Any, precision: Precision):
        super().__init__(layer, precision)
        cross, self.self_attn = layer.encoder_attn, layer.self_attn
        self.cross_q = linear([cross.q_proj], precision)
        self.cross_kv = linear([cross.k_proj, cross.v_proj], precision)
        self.cross_out = linear([cross.out_proj], precision)
        self.cross_norm = FastNorm(layer.encoder_attn_layer_norm)

    @functools.cached_property
    def own_value(self) -> FastLinear:
        """Self-attention of a position that sees itself only: the output projection of its own value."""
        value, out = self.self_attn.v_proj, self.self_attn.out_proj
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

    def attention(self, x: Tensor, window: Window) -> gpu.attention.SlotAttention:
        """Chooses how the slots of x (N, C) attend."""
        precision, attend = self.precision, gpu.attention.SlotAttention
        if precision.int8:
            return attend(self.heads, attend_alone, allowed=False)
        if precision.strict and window.fixed and x.device.type == "cpu":
            return attend(self.heads, attend_by_query, allowed=False)
        return attend(self.heads, F.scaled_dot_product_attention, allowed=not precision.strict)

    def __call__(
        self,
        x: Tensor,
        norm: FastNorm | None,
        window: Window,
        cache: Tensor,
        seen: Tensor | Visibility | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        layers: gpu.products.Layers = gpu.products.PLAIN,
    ) -> Tensor:
        """One layer.

        Args:
            x: (N, C), what the layer before gave.
            norm: the last one of the layer before, if x lacks it still.
            window: says where the tokens stand.
            cache: (B, capacity, 2C), written in place.
            seen: of :meth:`attention`.
            memory, memory_mask: (2, B, H, S, D) of the source; additive, (B, 1, 1, S), or None.
            layers: of the model; in 7 launches of a GPU, where its kernels run.

        Returns:
            (N, C), without the layer's last norm where norms follow.
        """
        block, before = self.feed_forward, self.pre_norm
        norms = self.own_norm, self.cross_norm, block.norm
        first, second, third = norms if before else (norm, *norms[:2])
        read, add, attention = gpu.products.read, gpu.products.add, self.attention(x, window)
        if window.alone:
            x, value = read(self.own_value, x, first, before, layers)
            x = x + value
        else:
            x, qkv = read(self.qkv, x, first, before, layers)
            x = add(self.own_out, x, attention.to_itself(qkv, window, cache, seen), layers)
        source = window, memory, memory_mask, layers, attention
        x, attended = gpu.cross.read_source(self.cross_q, x, second, before, *source)
        x = add(self.cross_out, x, attended, layers)
        x, hidden = read(block.expand, x, third, before, layers)
        return add(block.contract, x, block.activated(hidden), layers)

    @property
    def products(self) -> list[Any]:
        return [*super().products, self.cross_q, self.cross_out]

    @property
    def norms(self) -> list[FastNorm]:
        return [*super().norms, self.cross_norm]


def run_layers(
    layers: Sequence[DecoderLayer],
    x: Tensor,
    last: FastNorm | None,
    window: Window,
    cache: Tensor,
    seen: Tensor | Visibility | None,
    memory: Sequence[Tensor],
    memory_mask: Tensor | None,
    packed: gpu.products.Layers = gpu.products.PLAIN,
    normed: bool = True,
) -> Tensor:
    """Layers, one by one, and a norm: (N, C) -> (N, C); arguments as of a :class:`DecoderLayer`, for all of them.

    Without ``normed`` the last norm is missing, be it of the last layer or behind all.
    """
    norm: FastNorm | None = None
    # unbind: to iterate over a tensor takes longer
    for layer, kept, source in zip(layers, cache.unbind(0), memory, strict=True):
        x = layer(x, norm, window, kept, seen, source, memory_mask, packed)
        norm = None if layer.pre_norm else layer.feed_forward.norm
    missing = [one for one in (norm, last) if one is not None]
    for one in missing if normed else missing[:-1]:
        x = gpu.products.norm(one, x, packed)
    return x
