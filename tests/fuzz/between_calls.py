"""What may change between two calls of a generator: its fields, or a model."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch

from tests.random_models import stir


def set_field(name: str, values: tuple[Any, ...]) -> Callable[[random.Random], Any]:
    def choose(chance: random.Random) -> Any:
        value = chance.choice(values)

        def change(generator: Any) -> None:
            setattr(generator, name, value)

        change.__name__ = f"{name} = {value}"
        return change

    return choose


def other_models(generator: Any) -> None:
    found = copy.deepcopy(list(generator.model.models))
    with torch.no_grad():
        for weight in torch.nn.ModuleList(found).parameters():
            weight.copy_(weight.flip(0))
    generator.model = type(generator.model)(found)


FIELDS = [
    lambda chance: other_models,
    set_field("beam_size", (1, 2, 3, 5)),
    set_field("max_len_b", (1, 6, 14)),
    set_field("max_len_a", (0, 0.3)),
    set_field("max_len", (4, 20)),
    set_field("min_len", (0, 1, 2)),
    set_field("len_penalty", (0.5, 1.5)),
    set_field("unk_penalty", (0.0, 2.0, -1.0)),
    set_field("temperature", (1.0, 0.6)),
    set_field("normalize_scores", (False, True)),
    set_field("eos", (2, 2, 6, 3, 0)),
    set_field("pad", (1, 1, 6)),
    set_field("unk", (3, 5)),
]


def scale_weight(model: Any) -> None:
    with torch.no_grad():
        for weight in list(model.parameters())[-3:]:
            weight.mul_(-0.7)


def new_weights(model: Any) -> None:
    stir(model, 17)


def load_weights(model: Any) -> None:
    state = {name: value * 0.8 for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def hook(model: Any) -> None:
    layers = [*model.decoder.modules()]
    linear = next((one for one in layers if type(one) is torch.nn.Linear), None)
    if linear is not None:
        linear.register_forward_hook(lambda module, inputs, output: output * 1.2)


def train(model: Any) -> None:
    for part in model.modules():
        if hasattr(part, "p"):
            part.p = 0.0
        for name in ("encoder_layerdrop", "decoder_layerdrop"):
            if hasattr(part, name):
                setattr(part, name, 0.0)
    model.train()


def other_bias(model: Any) -> None:
    for part in model.modules():
        if type(part) is torch.nn.LayerNorm:
            part.bias = torch.nn.Parameter(part.bias.detach() + 0.3)


MODELS = [scale_weight, new_weights, load_weights, hook, train, other_bias]
