"""More of :mod:`tests.alterations`: attributes, numbers and probabilities of a model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerEncoder
from torch import Tensor

from tests.alterations import ALTERED, alteration, layers, lively

__all__ = ["ALTERED"]

# What stock decoding calls to order the rows


class ReorderedAndScaled(TransformerEncoder):
    def reorder_encoder_out(self, encoder_out: Any, new_order: Tensor) -> Any:
        found = super().reorder_encoder_out(encoder_out, new_order)
        return found | {"encoder_out": [found["encoder_out"][0] * 1.5]}


@alteration
def reordering_of_a_class(model: Any) -> None:
    model.encoder.__class__ = ReorderedAndScaled


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


# Attributes


@alteration
def another_activation(model: Any) -> None:
    for layer in model.decoder.layers:
        layer.activation_fn = F.gelu


@alteration
def activation_of_one_layer(model: Any) -> None:
    layers(model)[0].activation_fn = torch.tanh


@alteration
def activation_of_its_own(model: Any) -> None:
    layers(model)[1].activation_fn = lambda x: x.abs().sqrt()


@alteration
def another_eps(model: Any) -> None:
    layers(model)[1].final_layer_norm.eps = 0.7


@alteration
def embedding_scale(model: Any) -> None:
    model.decoder.embed_scale = 1.0


@alteration
def embedding_scale_of_encoder(model: Any) -> None:
    model.encoder.embed_scale = 1.0


@alteration
def learned_embedding_scale(model: Any) -> None:
    model.decoder.embed_scale = torch.linspace(1, 4, 16)


@alteration
def attention_scale(model: Any) -> None:
    layers(model)[1].self_attn.scaling *= 3


@alteration
def norms_of_one_layer_elsewhere(model: Any) -> None:
    layers(model)[1].normalize_before = False


@alteration
def heads_of_one_layer(model: Any) -> None:
    attention = layers(model)[1].self_attn
    attention.num_heads, attention.head_dim, attention.scaling = 4, 4, 0.5


@alteration
def limited_embeddings(model: Any) -> None:
    model.decoder.embed_tokens.max_norm = 0.5


@alteration
def padding_of_positions(model: Any) -> None:
    model.decoder.embed_positions.padding_idx += 5


@alteration
def padding_of_positions_of_encoder(model: Any) -> None:
    model.encoder.embed_positions.padding_idx += 5


@alteration
def padding_of_encoder(model: Any) -> None:
    model.encoder.padding_idx = 7


@alteration
def state_of_another_layer(model: Any) -> None:
    first, second = model.decoder.layers
    second.self_attn._incremental_state_id = first.self_attn._incremental_state_id


# Numbers


@alteration
def other_data(model: Any) -> None:
    linear = layers(model)[1].fc1
    linear.weight.data = linear.weight.data.flip(0)


@alteration
def transposed_data(model: Any) -> None:
    projection = layers(model)[1].self_attn.q_proj
    projection.weight.data = projection.weight.data.t()


@alteration
def part_of_data(model: Any) -> None:
    for layer in model.decoder.layers:
        layer.fc1.weight.data[1:] *= 0


@alteration
def column_of_data(model: Any) -> None:
    model.decoder.output_projection.weight.data[4:20, 3] += 1


@alteration
def through_numpy(model: Any) -> None:
    model.encoder.layers[0].fc1.weight.detach().numpy()[3:] = 0.1


@alteration
def data_of_norm(model: Any) -> None:
    layers(model)[1].encoder_attn_layer_norm.weight.data[4:] += 1


@alteration
def data_of_embeddings(model: Any) -> None:
    model.decoder.embed_tokens.weight.data[4:] *= -1


@alteration
def in_place(model: Any) -> None:
    with torch.no_grad():
        layers(model)[0].self_attn.v_proj.weight.mul_(2)


@alteration
def one_number_in_place(model: Any) -> None:
    with torch.no_grad():
        layers(model)[1].final_layer_norm.bias[5] += 3


@alteration
def state_dict(model: Any) -> None:
    model.load_state_dict(lively(1).state_dict())


@alteration
def another_type(model: Any) -> None:
    model.double()


@alteration
def table_of_positions(model: Any) -> None:
    positions = model.decoder.embed_positions
    positions.weights = positions.weights.flip(-1)


@alteration
def table_of_positions_that_grew(model: Any) -> None:
    positions = model.decoder.embed_positions
    positions.weights = positions.get_embedding(2000, 16, 1)
    positions.weights.mul_(-3)


# Probabilities: what a data store, a copier or a calibration adds


def favoured(log_probs: Tensor) -> Tensor:
    return (log_probs + torch.linspace(0, 4, log_probs.size(-1))).log_softmax(-1)


def favouring(module: Any) -> None:
    method = module.get_normalized_probs
    module.get_normalized_probs = lambda *args, **kwargs: favoured(method(*args, **kwargs))


@alteration
def probabilities(model: Any) -> None:
    favouring(model)


@alteration
def probabilities_of_decoder(model: Any) -> None:
    favouring(model.decoder)


def favouring_class(module: Any) -> None:
    class Favouring(type(module)):  # type: ignore[misc]
        def get_normalized_probs(self, net_output: Any, *args: Any, **kwargs: Any) -> Tensor:
            assert net_output[1]["inner_states"][-1].size(0) == 1  # as stock calls it
            return favoured(super().get_normalized_probs(net_output, *args, **kwargs))

    module.__class__ = Favouring


@alteration
def probabilities_of_class(model: Any) -> None:
    favouring_class(model)


@alteration
def probabilities_of_class_of_decoder(model: Any) -> None:
    favouring_class(model.decoder)
