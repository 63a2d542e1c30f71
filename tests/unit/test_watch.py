"""ModelWatch sees every change of what was packed, and nothing where nothing changed."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from fairseq_aggdec.engine.plain import watch as watch_module
from fairseq_aggdec.engine.plain.watch import ModelWatch, Numbers
from fairseq_aggdec.kernels.library import kernels
from tests.alterations import lively


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


def changes_seen(module: nn.Module, batches: int, tensor: Tensor, index: Any) -> bool:
    """Whether a write that PyTorch does not count is seen within so many batches."""
    watch = ModelWatch([module])
    assert not watch.changed()
    tensor.detach().numpy()[index] += 1
    return any(watch.changed() for _ in range(batches))


@pytest.mark.skipif(kernels() is None, reason="checksums are the compiled library's")
@pytest.mark.parametrize("index", [(0, 0), (255, 511), (100, 3)])
def test_watch_sees_one_number_in_the_end(index: Any) -> None:
    module = nn.Linear(512, 256)
    pieces = len(ModelWatch([module]).numbers.pieces)  # type: ignore[union-attr]
    assert pieces == 5
    assert changes_seen(module, pieces, module.weight, index)


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
    assert any(watch.changed() for _ in range(1 if found else watch_module.TURNS))


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
def test_watch_sees_what_stands_behind_the_last_whole_word(dtype: torch.dtype) -> None:
    module = nn.Linear(4, 4, bias=False)
    module.register_buffer("odd", torch.zeros(4097, dtype=dtype))
    watch = ModelWatch([module])
    assert not watch.changed()
    module.odd.data[-1] = 1
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
    assert not any(watch.changed() for _ in range(watch_module.TURNS))
    module.weight.data[4:] += 1
    assert any(watch.changed() for _ in range(2))


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


def test_watch_lets_notes_of_the_caller_pass() -> None:
    decoder = lively().decoder
    watch = ModelWatch([decoder])
    for step in range(3):
        decoder.step = step
        decoder.layers[0].fc1.note = step
        assert not watch.changed()
    again = ModelWatch([decoder])
    decoder.step = 7
    assert not again.changed()


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
