"""Ways to alter one thing of a model, as tables: attributes, classes, hooks, methods, numbers.

:mod:`tests.changes` has all ways by name; each changes what stock fairseq gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fairseq.models.transformer import TransformerEncoder
from fairseq.modules import (
    LearnedPositionalEmbedding,
    SinusoidalPositionalEmbedding,
    TransformerDecoderLayer,
)
from torch import Tensor, nn

from tests.support import make_model, make_task

# Its outputs vary with little that changes in it.
NORMS_FIRST = {"encoder_normalize_before": True, "decoder_normalize_before": True}
WIDTH = 16


def lively(seed: int = 11, **options: Any) -> Any:
    return make_model(make_task(), seed, **NORMS_FIRST, **options)


Change = Callable[[Any], object]
# A layer of the encoder and one of the decoder.
FIRST, LAST = "encoder.layers.0", "decoder.layers.1"


def layers(model: Any) -> tuple[Any, Any]:
    return model.get_submodule(FIRST), model.get_submodule(LAST)


# -- something else in place of what an attribute holds


class LowRank(nn.Linear):
    """The old weight and a low-rank part, as fine-tuning libraries add it."""

    def __init__(self, old: nn.Linear):
        super().__init__(old.in_features, old.out_features, old.bias is not None)
        self.weight, self.bias = old.weight, old.bias
        own = torch.Generator().manual_seed(1)
        self.a = nn.Parameter(torch.randn(4, old.in_features, generator=own))
        self.b = nn.Parameter(torch.randn(old.out_features, 4, generator=own) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.a.t() @ self.b.t()


class RootMeanSquare(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).add(self.eps).rsqrt() * self.weight


class WrappedAttention(nn.Module):
    """As adapters wrap it: of the attributes of attention it has none."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found, weights = self.inner(*args, **kwargs)
        return found * 1.5, weights


def seeded(make: Callable[[], nn.Module]) -> Callable[[Any], nn.Module]:
    def module(old: Any) -> nn.Module:
        torch.manual_seed(3)
        return make()

    return module


def quantized(module: nn.Module) -> Any:
    return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)


# Name -> the attribute, and what it holds then, made of what it holds.
REPLACED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{
        f"low rank {where}": (where, LowRank)
        for where in (
            *("decoder.layers.0.fc1", "decoder.layers.1.fc2", "decoder.layers.0.self_attn.q_proj"),
            *("decoder.layers.1.encoder_attn.k_proj", "decoder.layers.0.self_attn.out_proj"),
            *("decoder.output_projection", "encoder.layers.1.fc1"),
        )
    },
    # Modules
    "norm of its own decoder": (f"{LAST}.self_attn_layer_norm", lambda old: RootMeanSquare(WIDTH)),
    "new module": (f"{LAST}.fc1", seeded(lambda: nn.Linear(WIDTH, 32))),
    "new encoder": ("encoder", lambda old: lively(1).encoder),
    "new decoder": ("decoder", lambda old: lively(1).decoder),
    "layers in another order": ("decoder.layers", lambda old: nn.ModuleList([*reversed(old)])),
    "learned positions": (
        "decoder.embed_positions",
        seeded(lambda: LearnedPositionalEmbedding(70, WIDTH, 1)),
    ),
    "norm behind embeddings": ("decoder.layernorm_embedding", lambda old: nn.LayerNorm(WIDTH)),
    "no norm behind layers": ("encoder.layer_norm", lambda old: None),
    "wrapped attention": (f"{LAST}.encoder_attn", WrappedAttention),
    # Attention then reads no whole prefix, but words one by one.
    "quantized layer": (LAST, quantized),
    "quantized decoder": ("decoder", quantized),
    # Parameters
    "no bias": (f"{LAST}.fc1.bias", lambda old: None),
    "new parameter": (
        "decoder.output_projection.weight",
        lambda old: nn.Parameter(old.detach().flip(0)),
    ),
    "new parameter of norm": (
        f"{LAST}.final_layer_norm.weight",
        lambda old: nn.Parameter(old.detach() * 1.5),
    ),
    # Attributes
    "activation of one layer": (f"{FIRST}.activation_fn", lambda old: torch.tanh),
    "activation of its own": (f"{LAST}.activation_fn", lambda old: lambda x: x.abs().sqrt()),
    "another eps": (f"{LAST}.final_layer_norm.eps", lambda old: 0.7),
    "embedding scale": ("decoder.embed_scale", lambda old: 1.0),
    "embedding scale of encoder": ("encoder.embed_scale", lambda old: 1.0),
    "learned embedding scale": ("decoder.embed_scale", lambda old: torch.linspace(1, 4, WIDTH)),
    "attention scale": (f"{LAST}.self_attn.scaling", lambda old: old * 3),
    "norms of one layer elsewhere": (f"{LAST}.normalize_before", lambda old: False),
    "limited embeddings": ("decoder.embed_tokens.max_norm", lambda old: 0.5),
    "padding of positions": ("decoder.embed_positions.padding_idx", lambda old: old + 5),
    "padding of positions of encoder": ("encoder.embed_positions.padding_idx", lambda old: old + 5),
    "padding of encoder": ("encoder.padding_idx", lambda old: 7),
    "table of positions": ("decoder.embed_positions.weights", lambda old: old.flip(-1)),
}


def replaced(where: str, make: Callable[[Any], Any]) -> Change:
    def change(model: Any) -> None:
        path, _, name = where.rpartition(".")
        owner = model.get_submodule(path)
        setattr(owner, name, make(getattr(owner, name)))

    return change


# -- another class, which keeps the parameters


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Reversed(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).flip(-1)


class Halved(TransformerDecoderLayer):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x, *others = super().forward(*args, **kwargs)
        return (x / 2, *others)


class Backwards(SinusoidalPositionalEmbedding):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = super().forward(*args, **kwargs)
        return found.flip(1)


class ReorderedAndScaled(TransformerEncoder):
    def reorder_encoder_out(self, encoder_out: Any, new_order: Tensor) -> Any:
        found = super().reorder_encoder_out(encoder_out, new_order)
        return found | {"encoder_out": [found["encoder_out"][0] * 1.5]}


CLASSES = {
    "another class without parameters": (f"{LAST}.fc2", Doubled),
    "norm of its own encoder": (f"{FIRST}.final_layer_norm", RootMeanSquare),
    "embeddings of their own in encoder": ("encoder.embed_tokens", Reversed),
    "layer of another kind": ("decoder.layers.0", Halved),
    "positions of encoder": ("encoder.embed_positions", Backwards),
    "reordering of a class": ("encoder", ReorderedAndScaled),
}


# -- hooks behind a module


def more(module: Any, inputs: Any, output: Any) -> Any:
    return output * 1.5


def flipped(module: Any, inputs: Any, output: Any) -> Any:
    return (output[0].flip(-1), *output[1:]) if isinstance(output, tuple) else output.flip(-1)


HOOKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "hook on linear": (f"{LAST}.fc2", more),
    "hook on norm of encoder": (f"{FIRST}.self_attn_layer_norm", more),
    "hook on layer": (LAST, flipped),
    "hook on attention": (f"{LAST}.encoder_attn", flipped),
    "hook on embeddings": ("decoder.embed_tokens", flipped),
    "hook on embeddings of encoder": ("encoder.embed_tokens", flipped),
    "hook on dropout": (f"{LAST}.dropout_module", more),
}


# -- methods put onto a module


def scaled(module: Any, name: str = "forward", by: float = 1.5) -> None:
    """Has a method of a module give more than it does; of several results the first."""
    method = getattr(module, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        return (found[0] * by, *found[1:]) if isinstance(found, tuple) else found * by

    setattr(module, name, patched)


PATCHED = {
    "patched linear": (f"{LAST}.fc1", "forward"),
    "patched norm": (f"{LAST}.final_layer_norm", "forward"),
    "patched layer": ("decoder.layers.0", "forward"),
    "patched residual connection": (LAST, "residual_connection"),
    "patched layer of encoder": (FIRST, "forward"),
    "patched attention": (f"{LAST}.self_attn", "forward"),
    "patched embeddings": ("decoder.embed_tokens", "forward"),
    "patched embeddings of encoder": ("encoder.embed_tokens", "forward"),
    "patched positions": ("decoder.embed_positions", "forward"),
    "patched projection": ("decoder.output_projection", "forward"),
    "patched decoder": ("decoder", "forward"),
    "patched features": ("decoder", "extract_features"),
    "patched output layer": ("decoder", "output_layer"),
    "patched embedding of encoder": ("encoder", "forward_embedding"),
}


# -- numbers of a parameter

NUMBERS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "other data": (f"{LAST}.fc1.weight", lambda own: setattr(own, "data", own.data.flip(0))),
    "transposed data": (
        f"{LAST}.self_attn.q_proj.weight",
        lambda own: setattr(own, "data", own.data.t()),
    ),
    "column of data": (
        "decoder.output_projection.weight",
        lambda own: own.data[4:20, 3].add_(1),
    ),
    "through numpy": (f"{FIRST}.fc1.weight", lambda own: own.detach().numpy()[3:].fill(0.1)),
    "data of norm": (f"{LAST}.encoder_attn_layer_norm.weight", lambda own: own.data[4:].add_(1)),
    "data of embeddings": ("decoder.embed_tokens.weight", lambda own: own.data[4:].mul_(-1)),
    "in place": (f"{FIRST}.self_attn.v_proj.weight", lambda own: own.mul_(2)),
    "one number in place": (f"{LAST}.final_layer_norm.bias", lambda own: own[5].add_(3)),
}


@torch.no_grad()
def renumbered(model: Any, where: str, change: Callable[[Any], object]) -> None:
    change(model.get_parameter(where))
