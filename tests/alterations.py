"""Ways to alter a model, or to change one between two batches, by name; each changes what stock fairseq gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from fairseq.modules import LearnedPositionalEmbedding, TransformerDecoderLayer
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from tests.support import make_model, make_task

# Its outputs vary with little that changes in it.
NORMS_FIRST = {"encoder_normalize_before": True, "decoder_normalize_before": True}


def lively(seed: int = 11, **options: Any) -> Any:
    return make_model(make_task(), seed, **NORMS_FIRST, **options)


Change = Callable[[Any], object]
ALTERED: dict[str, Change] = {}


def alteration(change: Change) -> Change:
    ALTERED[change.__name__.replace("_", " ")] = change
    return change


def layers(model: Any) -> tuple[Any, Any]:
    """A layer of the encoder and one of the decoder."""
    return model.encoder.layers[0], model.decoder.layers[1]


# Linear layers of another kind


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


def low_rank(where: str) -> Change:
    def change(model: Any) -> None:
        path, _, name = where.rpartition(".")
        owner = model.get_submodule(path)
        setattr(owner, name, LowRank(getattr(owner, name)))

    return change


ALTERED |= {
    f"low rank {where}": low_rank(where)
    for where in (
        *("decoder.layers.0.fc1", "decoder.layers.1.fc2", "decoder.layers.0.self_attn.q_proj"),
        *("decoder.layers.1.encoder_attn.k_proj", "decoder.layers.0.self_attn.out_proj"),
        *("decoder.output_projection", "encoder.layers.1.fc1"),
    )
}


@alteration
def another_class_without_parameters(model: Any) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layers(model)[1].fc2.__class__ = Doubled


class RootMeanSquare(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).add(self.eps).rsqrt() * self.weight


@alteration
def norm_of_its_own_decoder(model: Any) -> None:
    layers(model)[1].self_attn_layer_norm = RootMeanSquare(16)


@alteration
def norm_of_its_own_encoder(model: Any) -> None:
    layers(model)[0].final_layer_norm.__class__ = RootMeanSquare


class Reversed(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).flip(-1)


@alteration
def embeddings_of_their_own_in_encoder(model: Any) -> None:
    model.encoder.embed_tokens.__class__ = Reversed


# Hooks


@alteration
def hook_on_linear(model: Any) -> None:
    layers(model)[1].fc2.register_forward_hook(lambda module, inputs, output: output * 1.5)


@alteration
def hook_on_norm_of_encoder(model: Any) -> None:
    norm = layers(model)[0].self_attn_layer_norm
    norm.register_forward_hook(lambda module, inputs, output: output * 1.5)


@alteration
def hook_on_layer(model: Any) -> None:
    layer = layers(model)[1]
    layer.register_forward_hook(lambda module, inputs, output: (output[0].flip(-1), *output[1:]))


@alteration
def hook_on_attention(model: Any) -> None:
    attention = layers(model)[1].encoder_attn
    attention.register_forward_hook(lambda module, inputs, output: (output[0] * 2, output[1]))


@alteration
def hook_before_linear(model: Any) -> None:
    layers(model)[1].fc1.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))


@alteration
def hook_on_embeddings(model: Any) -> None:
    tokens = model.decoder.embed_tokens
    tokens.register_forward_hook(lambda module, inputs, output: output.flip(-1))


@alteration
def hook_on_embeddings_of_encoder(model: Any) -> None:
    tokens = model.encoder.embed_tokens
    tokens.register_forward_hook(lambda module, inputs, output: output.flip(-1))


@alteration
def hook_on_dropout(model: Any) -> None:
    dropout = layers(model)[1].dropout_module
    dropout.register_forward_hook(lambda module, inputs, output: output * 1.5)


# Methods put onto a module


def scaled(module: Any, name: str = "forward", by: float = 1.5) -> None:
    """Has a method of a module give more than it does; of several results the first."""
    method = getattr(module, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        return (found[0] * by, *found[1:]) if isinstance(found, tuple) else found * by

    setattr(module, name, patched)


PATCHED: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "linear": lambda model: (layers(model)[1].fc1, "forward"),
    "norm": lambda model: (layers(model)[1].final_layer_norm, "forward"),
    "layer": lambda model: (model.decoder.layers[0], "forward"),
    "residual connection": lambda model: (layers(model)[1], "residual_connection"),
    "layer of encoder": lambda model: (layers(model)[0], "forward"),
    "attention": lambda model: (layers(model)[1].self_attn, "forward"),
    "embeddings": lambda model: (model.decoder.embed_tokens, "forward"),
    "embeddings of encoder": lambda model: (model.encoder.embed_tokens, "forward"),
    "positions": lambda model: (model.decoder.embed_positions, "forward"),
    "projection": lambda model: (model.decoder.output_projection, "forward"),
    "decoder": lambda model: (model.decoder, "forward"),
    "features": lambda model: (model.decoder, "extract_features"),
    "output layer": lambda model: (model.decoder, "output_layer"),
    "embedding of encoder": lambda model: (model.encoder, "forward_embedding"),
}
ALTERED |= {
    f"patched {name}": lambda model, at=at: scaled(*at(model))  # type: ignore[misc]
    for name, at in PATCHED.items()
}


@alteration
def patched_encoder(model: Any) -> None:
    forward = model.encoder.forward

    def patched(*args: Any, **kwargs: Any) -> Any:
        found = forward(*args, **kwargs)
        return found | {"encoder_out": [found["encoder_out"][0].flip(-1)]}

    model.encoder.forward = patched


# Weights that are computed


class Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@alteration
def parametrized(model: Any) -> None:
    parametrize.register_parametrization(layers(model)[1].fc1, "weight", Twice())


@alteration
def parametrized_norm(model: Any) -> None:
    parametrize.register_parametrization(layers(model)[0].final_layer_norm, "weight", Twice())


@alteration
def pruned(model: Any) -> None:
    prune.l1_unstructured(layers(model)[1].fc2, "weight", amount=0.5)


@alteration
def pruned_for_good(model: Any) -> None:
    prune.random_unstructured(layers(model)[0].fc2, "weight", amount=0.5)
    prune.remove(layers(model)[0].fc2, "weight")


@alteration
def norm_of_weights(model: Any) -> None:
    linear = layers(model)[1].fc1
    weight_norm(linear)
    with torch.no_grad():
        linear.weight_g.mul_(2)


@alteration
def norm_of_weights_parametrized(model: Any) -> None:
    linear = layers(model)[1].fc1
    parametrizations.weight_norm(linear)
    with torch.no_grad():
        linear.parametrizations.weight.original0.mul_(2)


@alteration
def spectral(model: Any) -> None:
    spectral_norm(layers(model)[1].fc2)
    layers(model)[1].fc2.eval()


# Other parameters and modules


@alteration
def new_parameter(model: Any) -> None:
    projection = model.decoder.output_projection
    projection.weight = nn.Parameter(projection.weight.detach().flip(0))


@alteration
def new_parameter_of_norm(model: Any) -> None:
    norm = layers(model)[1].final_layer_norm
    norm.weight = nn.Parameter(norm.weight.detach() * 1.5)


@alteration
def no_bias(model: Any) -> None:
    layers(model)[1].fc1.bias = None


@alteration
def new_module(model: Any) -> None:
    torch.manual_seed(3)
    layers(model)[1].fc1 = nn.Linear(16, 32)


@alteration
def copied_layer(model: Any) -> None:
    """It shares the state of incremental decoding with the one that it was copied from."""
    model.decoder.layers.append(copy.deepcopy(model.decoder.layers[0]))


@alteration
def new_encoder(model: Any) -> None:
    model.encoder = lively(1).encoder


@alteration
def new_decoder(model: Any) -> None:
    model.decoder = lively(1).decoder


@alteration
def fewer_layers(model: Any) -> None:
    del model.decoder.layers[0]


@alteration
def more_layers(model: Any) -> None:
    model.encoder.layers.append(copy.deepcopy(model.encoder.layers[0]))


@alteration
def layers_in_another_order(model: Any) -> None:
    model.decoder.layers = nn.ModuleList([*reversed(model.decoder.layers)])


@alteration
def layers_in_another_order_in_place(model: Any) -> None:
    parts = model.decoder.layers._modules
    parts["0"] = parts.pop("0")


@alteration
def layer_of_another_kind(model: Any) -> None:
    class Halved(TransformerDecoderLayer):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            x, *others = super().forward(*args, **kwargs)
            return (x / 2, *others)

    model.decoder.layers[0].__class__ = Halved


@alteration
def learned_positions(model: Any) -> None:
    torch.manual_seed(3)
    model.decoder.embed_positions = LearnedPositionalEmbedding(70, 16, 1)


@alteration
def positions_of_encoder(model: Any) -> None:
    class Backwards(type(model.encoder.embed_positions)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return super().forward(*args, **kwargs).flip(1)

    model.encoder.embed_positions.__class__ = Backwards


@alteration
def norm_behind_embeddings(model: Any) -> None:
    model.decoder.layernorm_embedding = nn.LayerNorm(16)


@alteration
def no_norm_behind_layers(model: Any) -> None:
    model.encoder.layer_norm = None


# Modules of libraries that wrap or replace what is there


@alteration
def compiled(model: Any) -> None:
    """torch.compile wraps a layer in a module that has no attributes of its own."""
    decoder = model.decoder
    hook_on_linear(model)
    decoder.layers[1] = torch.compile(decoder.layers[1], backend="eager", dynamic=True)


def quantized(module: nn.Module) -> Any:
    return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)


@alteration
def quantized_layer(model: Any) -> None:
    """Attention then reads no whole prefix, but words one by one."""
    model.decoder.layers[1] = quantized(model.decoder.layers[1])


@alteration
def quantized_decoder(model: Any) -> None:
    model.decoder = quantized(model.decoder)


@alteration
def wrapped_attention(model: Any) -> None:
    """As adapters wrap it: of the attributes of attention it has none."""

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            found, weights = self.inner(*args, **kwargs)
            return found * 1.5, weights

    layer = layers(model)[1]
    layer.encoder_attn = Wrapped(layer.encoder_attn)
