"""ModelWatch sees every change of what was packed, and nothing where nothing changed."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from fairseq_aggdec.engine.plain import watch as watch_module
from fairseq_aggdec.engine.plain.watch import ModelWatch, Numbers
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.search.engines import of_generator
from tests.alterations import lively
from tests.support import generation_options, make_batch, make_model, make_task


def test_watch_sees_nothing_when_nothing_happens() -> None:
    module = nn.Linear(4, 3)
    watch = ModelWatch([module])
    module(torch.randn(2, 4))
    assert not watch.changed()


def write_in_place(module: nn.Linear) -> None:
    with torch.no_grad():
        module.weight.add_(1.0)


def write_data(module: nn.Linear) -> None:
    """As fairseq's optimisers do: autograd's version counter does not move."""
    module.weight.data.add_(1.0)


def replace_data(module: nn.Linear) -> None:
    module.weight.data = torch.randn(3, 4)


def change_type(module: nn.Linear) -> None:
    module.half()


def load_state(module: nn.Linear) -> None:
    module.load_state_dict(nn.Linear(4, 3).state_dict())


@pytest.mark.parametrize(
    "change", [write_in_place, write_data, replace_data, change_type, load_state]
)
def test_watch_sees(change: Any) -> None:
    module = nn.Linear(4, 3)
    watch = ModelWatch([module])
    change(module)
    assert watch.changed()


def test_watch_sees_an_optimiser_step() -> None:
    with torch.enable_grad():
        module = nn.Linear(4, 3)
        watch = ModelWatch([module])
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(torch.ones(2, 4)).sum().backward()
        assert not watch.changed()
        optimizer.step()
        assert watch.changed()


def test_watch_takes_a_module_with_an_empty_parameter() -> None:
    module = nn.Module()
    module.empty = nn.Parameter(torch.empty(0, 3))
    module.other = nn.Parameter(torch.ones(2))
    assert not ModelWatch([module]).changed()


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize(
    "index", [slice(1, None), slice(128, None), (slice(None), slice(1, None)), slice(None, 250)]
)
def test_watch_sees_parts_at_once(index: Any, library: bool) -> None:
    module = nn.Linear(512, 256)
    found = kernels() if library else None
    with mock.patch.object(watch_module, "kernels", return_value=found):
        watch = ModelWatch([module])
    assert isinstance(watch.numbers, Numbers) == (found is None)
    module.weight.detach().numpy()[index] += 1
    assert watch.changed()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [3, 64])
def test_watch_sees_other_types(dtype: torch.dtype, size: int) -> None:
    module = nn.Linear(size, size).to(dtype)
    watch = ModelWatch([module])
    assert not watch.changed()
    module.weight.data.add_(1)
    module.bias.data.add_(1)
    assert watch.changed()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_watch_sees_numbers_that_fill_no_whole_words(dtype: torch.dtype) -> None:
    module = nn.Linear(4, 4, bias=False)
    module.register_buffer("odd", torch.zeros(4097, dtype=dtype))
    watch = ModelWatch([module])
    assert not watch.changed()
    module.odd.data[16:] = 1
    assert watch.changed()


def test_watch_takes_parameters_that_do_not_stand_row_after_row() -> None:
    module = nn.Linear(4, 3)
    module.weight = nn.Parameter(torch.randn(4, 3).t())
    watch = ModelWatch([module])
    assert not watch.changed()
    module.weight.data[:] += 1
    assert watch.changed()


def every_other_column(linear: nn.Linear) -> Tensor:
    return torch.zeros(linear.out_features, 2 * linear.in_features)[:, ::2]


def columns(linear: nn.Linear) -> Tensor:
    return torch.zeros(linear.out_features, 2 * linear.in_features)[:, : linear.in_features]


def at_an_odd_offset(linear: nn.Linear) -> Tensor:
    flat = torch.zeros(linear.weight.numel() + 1, dtype=torch.bfloat16)
    return flat[1:].view_as(linear.weight)


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("place", [every_other_column, columns, at_an_odd_offset])
def test_watch_sees_what_stands_in_no_row_of_words(place: Any, library: bool) -> None:
    module = nn.Linear(64, 48)
    module.weight.data = place(module).copy_(module.weight)
    module.weight.data[3, :20] = torch.nan
    found = kernels() if library else None
    with mock.patch.object(watch_module, "kernels", return_value=found):
        watch = ModelWatch([module])
    assert not watch.changed() and not watch.changed()
    module.weight.data[4:] += 1
    assert watch.changed()


@pytest.mark.skipif(kernels() is None, reason="without the compiled library few rows are compared")
def test_watch_sees_every_row_of_an_embedding() -> None:
    """``embed_tokens.weight.data[id] = vector`` adds a token; a thousand numbers alone would miss most rows."""
    table, size = nn.Embedding(5000, 32, padding_idx=1), watch_module.SAMPLES
    watch = ModelWatch([nn.ModuleList([table, nn.Linear(64, 64)])])
    assert len(table.weight) > 4 * size
    for row in range(0, 5000, 97):
        before = table.weight.data[row].clone()
        table.weight.data[row] = torch.randn(32)
        assert watch.changed(), row
        table.weight.data[row] = before
        assert not watch.changed(), row


def test_watch_bears_not_a_number() -> None:
    module = nn.Linear(4, 3)
    module.weight.data[:] = torch.nan
    assert not ModelWatch([module]).changed()


def test_watch_lets_tables_of_positions_grow() -> None:
    positions = SinusoidalPositionalEmbedding(8, 1, init_size=10)
    watch = ModelWatch([positions])
    positions(torch.full((1, 30), 5))
    assert len(positions.weights) > 20
    assert not watch.changed()
    positions.weights = positions.weights * 2
    assert watch.changed()


def test_watch_sees_writes_to_a_table_that_grew() -> None:
    positions = SinusoidalPositionalEmbedding(8, 1, init_size=10)
    watch = ModelWatch([positions])
    positions(torch.full((1, 30), 5))
    assert not watch.changed()
    positions.weights[3:].mul_(2)
    assert watch.changed()


def test_watch_of_others_is_about_what_they_are() -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    watch = ModelWatch([], [module])
    module[0].weight.data.add_(1)
    module[0].note = "anything"  # type: ignore[assignment]
    assert not watch.changed()
    module[0].register_forward_hook(lambda *arguments: None)
    assert watch.changed()


def test_watch_lets_notes_of_decoding_pass() -> None:
    decoder = lively().decoder
    watch = ModelWatch([decoder])
    for step in range(3):
        decoder.layers[0].self_attn.beam_size = step
        decoder.layers[0].fc1.note = step
        assert not watch.changed()
    decoder.layers[0].note = 1  # which might be read
    assert watch.changed()


DICTIONARIES: dict[str, Any] = {
    "of attributes, filled from another": lambda part: vars(part).update(vars(nn.Linear(2, 2))),
    "of parameters": lambda part: setattr(part, "_parameters", nn.Linear(2, 2)._parameters),
    "of hooks": lambda part: setattr(part, "_forward_hooks", {0: print}),
}


@pytest.mark.parametrize("name", DICTIONARIES)
def test_watch_sees_a_dictionary_put_in_place_of_a_modules_own(name: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    watch = ModelWatch([module])
    assert not watch.changed()
    DICTIONARIES[name](module[0])
    assert watch.changed() and watch.changed()
    watch = ModelWatch([module])
    assert not watch.changed()
    module._modules = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))._modules
    assert watch.changed()


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("", "embed_scale"),
        ("layers.0", "normalize_before"),
        ("layers.0.fc1", "bias"),
        ("layers.0.self_attn", "_incremental_state_id"),
        ("embed_positions", "padding_idx"),
    ],
)
def test_watch_sees_attributes_that_tell(where: str, name: str) -> None:
    decoder = lively().decoder
    module = decoder.get_submodule(where)
    watch = ModelWatch([decoder])
    vars(module)[name] = None
    assert watch.changed()


def put_forward(module: nn.Module) -> None:
    module.forward = lambda x: x  # type: ignore[method-assign,assignment]


def put_another_forward(module: nn.Module) -> None:
    module.forward = lambda x: x  # type: ignore[method-assign,assignment]


def take_forward_back(module: nn.Module) -> None:
    del module.forward


def test_watch_of_others_sees_what_is_called_in_them() -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    for change in (put_forward, put_another_forward, take_forward_back):
        watch = ModelWatch([], [module])
        assert not watch.changed()
        change(module[0])
        assert watch.changed()


def test_watch_says_what_it_was_told_once() -> None:
    watch = ModelWatch([nn.Linear(4, 3)])
    watch.answer(True)
    assert watch.changed()
    assert not watch.changed()


def test_a_models_padding_that_changes_between_batches_counts() -> None:
    models = [make_model(make_task(), seed) for seed in (4, 5)]
    generator = make_task("greedy").build_generator(models, generation_options(beam=1))
    for _ in range(3):
        assert of_generator(generator) is None
    for model in models:
        for part in (model.decoder, model.decoder.embed_positions):
            before, part.padding_idx = part.padding_idx, 0
            assert of_generator(generator) is not None
            part.padding_idx = before
            assert of_generator(generator) is None and of_generator(generator) is None


def test_what_is_put_onto_a_generator_between_batches_counts() -> None:
    model = make_model(make_task(), 4)
    generator = make_task("greedy").build_generator([model], generation_options(beam=1))
    sample = make_batch([[5, 6, 7]])
    for _ in range(3):
        generator.generate([model], sample)
        assert of_generator(generator) is None
    assert of_generator(copy.copy(generator)) is None
    for owner, name in ((generator, "lm_model"), (generator.search, "step")):
        before = getattr(owner, name)
        setattr(owner, name, print)
        assert of_generator(generator) is not None and of_generator(generator) is not None
        setattr(owner, name, before)
        vars(owner).pop("step", None)
        assert of_generator(generator) is None and of_generator(generator) is None


def test_a_generator_is_freed_with_its_last_user() -> None:
    model = make_model(make_task(), 4)
    generator = make_task("greedy").build_generator([model], generation_options(beam=1))
    generator.generate([model], make_batch([[5, 6, 7]]))
    alive = weakref.ref(generator)
    gc.disable()
    try:
        del generator
        assert alive() is None
    finally:
        gc.enable()
