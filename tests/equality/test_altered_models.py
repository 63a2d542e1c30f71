"""Models that were altered before their first batch, or are changed between two: the output is stock's, always.

Every alteration is decoded by beam search, greedily and with copied drafts; by generators that were made, and had
decoded, before it, and by new ones.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from fairseq.modules import LearnedPositionalEmbedding, TransformerDecoderLayer
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from fairseq_aggdec.decoding.cached_decoder import CachedDecoder
from fairseq_aggdec.decoding.encoder import FastEncoder
from fairseq_aggdec.decoding.prefix_decoder import PrefixDecoder
from fairseq_aggdec.tasks import decoding_task
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
)

BATCH = make_batch(random_sources(7, 2, longest=7))
METHODS = {"beam": 5, "greedy": 1, "iad": 1}

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


def nbest(generator: Any, models: list[Any]) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = make_task().inference_step(generator, models, BATCH)
    return found


def generator_of(method: str, models: list[Any], beam: int, **options: Any) -> Any:
    task = make_task(method, **options)
    return task.build_generator(models, generation_options(beam=beam, max_len_b=6))


def assert_equal(found: list[list[Any]], expected: list[list[Any]]) -> None:
    assert [len(ranked) for ranked in found] == [len(ranked) for ranked in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


def by_stock(models: list[Any], beam: int) -> list[list[dict[str, Any]]]:
    generator = generator_of("stock", models, beam)
    assert type(generator) is SequenceGenerator
    return nbest(generator, models)


def differ(one: list[list[Any]], other: list[list[Any]]) -> bool:
    """Whether the best hypotheses do, in tokens or clearly in score."""
    return any(
        a["tokens"].tolist() != b["tokens"].tolist() or abs(float(a["score"] - b["score"])) > 1e-3
        for (a, *_), (b, *_) in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def unaltered() -> list[list[dict[str, Any]]]:
    return by_stock([lively()], 1)


def test_there_are_at_least_forty() -> None:
    assert len(ALTERED) >= 40


@pytest.mark.parametrize("name", ALTERED)
@pytest.mark.filterwarnings("ignore")
def test_altered_or_changed(name: str, unaltered: list[list[dict[str, Any]]]) -> None:
    models = [lively()]
    older = {method: generator_of(method, models, beam) for method, beam in METHODS.items()}
    nbest(older["beam"], models)
    ALTERED[name](models[0])
    models[0].eval()
    expected = {beam: by_stock(models, beam) for beam in (1, 5)}
    assert differ(expected[1], unaltered) or name == "another type", "it alters nothing"
    for method, beam in METHODS.items():
        assert_equal(nbest(older[method], models), expected[beam])
    for method in ("beam", "iad"):
        beam = METHODS[method]
        assert_equal(nbest(generator_of(method, models, beam), models), expected[beam])


# What is not a change of the output


def test_a_plain_model_has_its_fast_forms_and_keeps_them() -> None:
    models = [lively()]
    generator = generator_of("iad", models, 1)
    (member,) = generator.verifier.members
    forms = member.encoder, member.decoder
    for _ in range(3):
        nbest(generator, models)
        by_stock(models, 5)  # writes nothing that was read
    assert (member.encoder, member.decoder) == forms
    assert isinstance(member.encoder, FastEncoder) and isinstance(member.decoder, CachedDecoder)


def test_what_is_taken_back_is_fast_again() -> None:
    models = [lively()]
    generator = generator_of("beam", models, 5)
    hook = layers(models[0])[1].fc2.register_forward_hook(lambda module, inputs, output: output * 2)
    nbest(generator, models)
    (member,) = generator.verifier.members
    assert isinstance(member.decoder, PrefixDecoder)
    assert isinstance(member.encoder, FastEncoder)
    hook.remove()
    assert_equal(nbest(generator, models), by_stock(models, 5))
    assert isinstance(member.decoder, CachedDecoder)


def test_training_mode_counts_where_something_is_dropped() -> None:
    models = [lively()]
    generator = generator_of("greedy", models, 1)
    models[0].train()
    nbest(generator, models)  # finds out
    assert_equal(seeded(nbest, generator, models), seeded(by_stock_as_it_is, models))
    models[0].eval()
    assert_equal(nbest(generator, models), by_stock(models, 1))


def seeded(decode: Callable[..., Any], *arguments: Any) -> Any:
    torch.manual_seed(5)
    return decode(*arguments)


def by_stock_as_it_is(models: list[Any]) -> Any:
    """By a stock generator that does not end training mode."""
    generator = generator_of("stock", models, 1)
    models[0].train()
    return nbest(generator, models)


# What is said


@pytest.mark.parametrize("name", ["hook on linear", "probabilities"])
def test_it_is_said_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    models = [lively()]
    generator = generator_of("iad", models, 1)
    ALTERED[name](models[0])
    for _ in range(3):
        nbest(generator, models)
    said = [record.getMessage() for record in caplog.records]
    expected = "a Linear with hooks" if name == "hook on linear" else "get_normalized_probs() of"
    assert [expected in line for line in said].count(True) == 1
    assert ("left to stock fairseq" in said[-1]) == (name == "probabilities")


@pytest.mark.parametrize("options", [{"int8": True}, {"strict": 4}])
@pytest.mark.parametrize("name", ["hook on linear", "probabilities"])
def test_what_needs_the_fast_form_is_refused(name: str, options: dict[str, Any]) -> None:
    refused = pytest.raises(ValueError, match="needs the decoder of a stock Transformer, not")
    models = [lively()]
    generator = generator_of("greedy", models, 1, **options)
    nbest(generator, models)
    ALTERED[name](models[0])
    for _ in range(2):
        with refused:
            nbest(generator, models)
    with refused:
        generator_of("greedy", models, 1, **options)


# State


class Counting(nn.Linear):
    """Gives more with every call, as a layer that learns while it decodes does."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 4)


class Lonely(nn.Linear):
    """Tells a position alone from several."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if len(x) == 1 else 1)


@pytest.mark.parametrize("kind", [Counting, Lonely])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layer", ["fc1", "self_attn.q_proj"])
def test_state_of_a_layer(kind: type, method: str, layer: str) -> None:
    found, expected = lively(), lively()
    for model in (found, expected):
        layers(model)[1].get_submodule(layer).__class__ = kind
    beam = METHODS[method]
    generator = generator_of(method, [found], beam)
    stock = generator_of("stock", [expected], beam)
    for _ in range(2):
        assert_equal(nbest(generator, [found]), nbest(stock, [expected]))


# Several models, drafters, heads


@pytest.mark.parametrize("name", ["hook on linear", "part of data", "probabilities"])
@pytest.mark.parametrize("method", METHODS)
def test_one_model_of_an_ensemble(name: str, method: str) -> None:
    models = [lively(11), lively(1)]
    beam = METHODS[method]
    generator = generator_of(method, models, beam)
    nbest(generator, models)
    ALTERED[name](models[1])
    assert_equal(nbest(generator, models), by_stock(models, beam))
    assert_equal(nbest(generator_of(method, models, beam), models), by_stock(models, beam))


@pytest.mark.parametrize("name", ["hook on linear", "part of data", "probabilities", "no bias"])
def test_verifier_and_drafter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [lively()]
    drafter = make_model(make_task(), 3, "nar_drafter", block_size=4)
    monkeypatch.setattr(decoding_task, "load_drafter", lambda path, task: drafter)
    generator = generator_of("gad", models, 1, drafter_path="drafter.pt")
    nbest(generator, models)
    for changed in (drafter, models[0]):
        if changed is models[0] or name != "probabilities":
            ALTERED[name](changed)
        assert_equal(nbest(generator, models), by_stock(models, 1))
    again = generator_of("gad", models, 1, drafter_path="drafter.pt")
    assert_equal(nbest(again, models), by_stock(models, 1))


@pytest.mark.parametrize("name", ["hook on linear", "part of data", "no bias"])
def test_a_drafter_alone_drafts_by_its_own_layers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, drafter = [lively()], make_model(make_task(), 3, "nar_drafter", block_size=4)
    monkeypatch.setattr(decoding_task, "load_drafter", lambda path, task: drafter)
    older = generator_of("nar", models, 1, drafter_path="drafter.pt")
    nbest(older, models)
    ALTERED[name](drafter)
    newer = generator_of("nar", models, 1, drafter_path="drafter.pt")
    with mock.patch("fairseq_aggdec.drafters.nar.decoder_gap", return_value="asked for"):
        plain = generator_of("nar", models, 1, drafter_path="drafter.pt")
        expected = nbest(plain, models)
    assert_equal(nbest(older, models), expected)
    assert_equal(nbest(newer, models), expected)


def expand_more(model: Any) -> None:
    parametrize.register_parametrization(model.decoder.heads.contract, "weight", Twice())


def write_to_heads(model: Any) -> None:
    model.decoder.heads.contract.weight.data[2:] += 1


@pytest.mark.parametrize(
    "change",
    [ALTERED["hook on linear"], ALTERED["probabilities"], expand_more, write_to_heads],
)
@pytest.mark.parametrize("method", ["blockwise", "beam from heads"])
def test_block_heads(change: Change, method: str) -> None:
    torch.manual_seed(2)
    models = [make_model(make_task(), 3, "blockwise_transformer", block_size=4)]
    beam, options = (1, {}) if method == "blockwise" else (3, {"draft_from": "heads"})
    generator = generator_of(method.split()[0], models, beam, **options)
    nbest(generator, models)
    change(models[0])
    expected = by_stock(models, beam)
    assert_equal(nbest(generator, models), expected)


# Everywhere


def test_hooks_on_every_module() -> None:
    models = [lively()]
    generator = generator_of("beam", models, 5)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output * 1.5 if isinstance(module, nn.LayerNorm) else None
    )
    try:
        assert_equal(nbest(generator, models), by_stock(models, 5))
    finally:
        hook.remove()
    assert_equal(nbest(generator, models), by_stock(models, 5))


def test_a_class_of_torch_that_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    models, forward = [lively()], nn.LayerNorm.forward
    generator = generator_of("iad", models, 1)
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: forward(self, x) * 1.5)
    assert_equal(nbest(generator, models), by_stock(models, 1))


# Inference mode


@pytest.mark.parametrize("method", METHODS)
def test_everything_inside_inference_mode(method: str) -> None:
    beam = METHODS[method]
    with torch.inference_mode():
        models = [lively()]
        generator = generator_of(method, models, beam)
        found = nbest(generator, models)
        assert_equal(found, by_stock(models, beam))
        ALTERED["part of data"](models[0])
        assert_equal(nbest(generator, models), by_stock(models, beam))
    assert_equal(nbest(generator, models), by_stock(models, beam))
    assert_equal(nbest(generator_of(method, models, beam), models), by_stock(models, beam))


# Few numbers, written past PyTorch


def test_one_number_is_seen_in_the_end_and_at_once_when_told() -> None:
    models = [lively()]
    generator = generator_of("iad", models, 1)
    (member,) = generator.verifier.members
    nbest(generator, models)
    pieces = len(member.watch.numbers.pieces)
    weight = models[0].encoder.layers[0].fc1.weight.detach().numpy()
    before = member.decoder
    weight[7, 5] += 9
    for _ in range(pieces):
        nbest(generator, models)
    assert member.decoder is not before
    assert_equal(nbest(generator, models), by_stock(models, 1))
    weight[8, 6] += 9
    generator.refresh()
    assert_equal(nbest(generator, models), by_stock(models, 1))
