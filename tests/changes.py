"""Ways to alter a model, or to change one between two batches, by name; each changes what stock fairseq gives."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from tests.alterations import (
    CLASSES,
    HOOKS,
    NUMBERS,
    PATCHED,
    REPLACED,
    WIDTH,
    Change,
    layers,
    lively,
    renumbered,
    replaced,
    scaled,
)

ALTERED: dict[str, Change] = {
    **{name: replaced(*how) for name, how in REPLACED.items()},
    **{
        name: lambda model, how=how: setattr(model.get_submodule(how[0]), "__class__", how[1])  # type: ignore[misc]
        for name, how in CLASSES.items()
    },
    **{
        name: lambda model, how=how: model.get_submodule(how[0]).register_forward_hook(how[1])  # type: ignore[misc]
        for name, how in HOOKS.items()
    },
    **{
        name: lambda model, how=how: scaled(model.get_submodule(how[0]), how[1])  # type: ignore[misc]
        for name, how in PATCHED.items()
    },
    **{name: lambda model, how=how: renumbered(model, *how) for name, how in NUMBERS.items()},  # type: ignore[misc]
    "copied layer": lambda model: model.decoder.layers.append(
        copy.deepcopy(model.decoder.layers[0])  # shares the state of incremental decoding
    ),
    "more layers": lambda model: model.encoder.layers.append(
        copy.deepcopy(model.encoder.layers[0])
    ),
    "fewer layers": lambda model: model.decoder.layers.pop(0),
    "state dict": lambda model: model.load_state_dict(lively(1).state_dict()),
    "another type": lambda model: model.double(),
}


def alteration(change: Change) -> Change:
    ALTERED[change.__name__.replace("_", " ")] = change
    return change


@alteration
def hook_before_linear(model: Any) -> None:
    layers(model)[1].fc1.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))


@alteration
def patched_encoder(model: Any) -> None:
    forward = model.encoder.forward

    def patched(*args: Any, **kwargs: Any) -> Any:
        found = forward(*args, **kwargs)
        return found | {"encoder_out": [found["encoder_out"][0].flip(-1)]}

    model.encoder.forward = patched


@alteration
def patched_reordering(model: Any) -> None:
    reorder = model.encoder.reorder_encoder_out

    def patched(encoder_out: Any, new_order: Tensor) -> Any:
        encoder_out["encoder_out"][0].mul_(1.5)
        return reorder(encoder_out, new_order)

    model.encoder.reorder_encoder_out = patched


@alteration
def patched_reordering_of_a_state(model: Any) -> None:
    reorder = model.decoder.reorder_incremental_state_scripting

    def patched(state: Any, new_order: Tensor) -> None:
        reorder(state, new_order)
        for own in state.values():
            own["prev_value"] = own["prev_value"] * 1.5

    model.decoder.reorder_incremental_state_scripting = patched


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


# More than one part


@alteration
def another_activation(model: Any) -> None:
    for layer in model.decoder.layers:
        layer.activation_fn = F.gelu


@alteration
def part_of_data(model: Any) -> None:
    for layer in model.decoder.layers:
        layer.fc1.weight.data[1:] *= 0


@alteration
def heads_of_one_layer(model: Any) -> None:
    attention = layers(model)[1].self_attn
    attention.num_heads, attention.head_dim, attention.scaling = 4, 4, 0.5


@alteration
def state_of_another_layer(model: Any) -> None:
    first, second = model.decoder.layers
    second.self_attn._incremental_state_id = first.self_attn._incremental_state_id


@alteration
def layers_in_another_order_in_place(model: Any) -> None:
    parts = model.decoder.layers._modules
    parts["0"] = parts.pop("0")


@alteration
def table_of_positions_that_grew(model: Any) -> None:
    positions = model.decoder.embed_positions
    positions.weights = positions.get_embedding(2000, WIDTH, 1)
    positions.weights.mul_(-3)


@alteration
def compiled(model: Any) -> None:
    """torch.compile wraps a layer in a module that has no attributes of its own."""
    decoder = model.decoder
    ALTERED["hook on linear"](model)
    decoder.layers[1] = torch.compile(decoder.layers[1], backend="eager", dynamic=True)


# Probabilities: what a data store, a copier or a calibration adds


def favoured(log_probs: Tensor) -> Tensor:
    return (log_probs + torch.linspace(0, 4, log_probs.size(-1))).log_softmax(-1)


def favouring(module: Any) -> None:
    method = module.get_normalized_probs
    module.get_normalized_probs = lambda *args, **kwargs: favoured(method(*args, **kwargs))


def favouring_class(module: Any) -> None:
    class Favouring(type(module)):  # type: ignore[misc]
        def get_normalized_probs(self, net_output: Any, *args: Any, **kwargs: Any) -> Tensor:
            assert net_output[1]["inner_states"][-1].size(0) == 1  # as stock calls it
            return favoured(super().get_normalized_probs(net_output, *args, **kwargs))

    module.__class__ = Favouring


ALTERED |= {
    "probabilities": favouring,
    "probabilities of decoder": lambda model: favouring(model.decoder),
    "probabilities of class": favouring_class,
    "probabilities of class of decoder": lambda model: favouring_class(model.decoder),
}
